#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What a rank says of itself, name by name: {{"version", "0.1.0"}, {"schedule", "1F1B"}}.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Compares what all ranks say. Called by all of them; if they differ, every one throws the same
/// MetadataError, which names each fact that differs and which rank has what:
///
///   the ranks do not agree: version is 0.1.0 on ranks 0 and 2, 0.0.9 on rank 1
void agree(Transport& transport, const Facts& facts, Deadline deadline);

/// "version is 0.1.0 on ranks 0 and 2, 0.0.9 on rank 1"; empty when all say the same. In the order
/// in which the facts are first named.
std::string describe_disagreement(const std::vector<Facts>& by_rank);

}  // namespace stagecraft
