#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stagecraft/transport/core/progress.h"

namespace stagecraft::detail {

/// What a heartbeat carries; empty for nothing.
std::string encode_progress(const std::optional<RankProgress>& progress);
/// MetadataError for what is none.
std::optional<RankProgress> decode_progress(std::string_view bytes);

}  // namespace stagecraft::detail
