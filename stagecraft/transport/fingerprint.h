#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What the ranks must have in common, as names and values: {{"version", "0.1.0"}, {"schedule",
/// "1F1B"}}.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

/// Compares the values of all ranks. Called by all of them. On a mismatch every rank throws the
/// same MetadataError, which names each entry that differs and the ranks with each value:
///
///   the ranks do not agree: version is 0.1.0 on ranks 0 and 2, 0.0.9 on rank 1
void handshake(Transport& transport, const Fingerprint& fingerprint, Deadline deadline);

/// Describes the entries that differ: "version is 0.1.0 on ranks 0 and 2, 0.0.9 on rank 1". Empty
/// if all are equal. Entries are in the order of their first occurrence.
std::string describe_mismatch(const std::vector<Fingerprint>& by_rank);

namespace detail {

/// The MetadataError of a handshake, unless `mismatch` is empty.
void require_agreement(const std::string& mismatch);

}  // namespace detail
}  // namespace stagecraft
