#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/wire/bytes.h"

/// The handshake of processes that join a world, over every back end: each rank sends a magic
/// number and its fingerprint to all others, and compares the fingerprints of all ranks.
///
///   message   [magic | what the back end adds | fingerprint]
namespace stagecraft::detail {

constexpr uint32_t swap_bytes(uint32_t number) {
  return (number >> 24U) | ((number >> 8U) & 0xFF00U) | ((number << 8U) & 0xFF0000U) |
         (number << 24U);
}

/// Begins a message of a rank that joins. Change it when the format of these messages changes.
constexpr uint32_t kHandshakeMagic = 0x33484353;  // "SCH3"

/// Version, torch, wire protocol, byte order, number of ranks, checksums and a digest of the token,
/// then `options.fingerprint`, whose entries replace those of the same name.
Fingerprint fingerprint_of_rank(const JoinOptions& options, int32_t num_ranks);

void write_fingerprint(ByteWriter& out, const Fingerprint& fingerprint);
/// MetadataError for bytes that are too short.
Fingerprint read_fingerprint(ByteReader& in);

/// Reads the magic number. Returns nothing if it is ours. Otherwise the rest of the message cannot
/// be read. The result is then `mine` with one changed entry: the opposite byte order, or a version
/// that joins differently.
std::optional<Fingerprint> read_magic(ByteReader& in, Fingerprint mine);

/// MetadataError that names each entry that differs and the ranks with each value.
void require_same_fingerprints(const std::vector<Fingerprint>& by_rank);

}  // namespace stagecraft::detail
