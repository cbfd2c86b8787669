#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stagecraft/transport/core/progress.h"

namespace stagecraft::detail {

/// The body of a heartbeat; empty without progress.
std::string encode_progress(const std::optional<RankProgress>& progress);
/// MetadataError for invalid bytes.
std::optional<RankProgress> decode_progress(std::string_view bytes);

}  // namespace stagecraft::detail
