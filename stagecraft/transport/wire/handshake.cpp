#include "stagecraft/transport/wire/handshake.h"

#include <bit>
#include <string>
#include <utility>

#include <torch/version.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/base/version.h"
#include "stagecraft/transport/wire/frame.h"

namespace stagecraft::detail {
namespace {

constexpr bool kIsLittle = std::endian::native == std::endian::little;
constexpr const char* kByteOrder = kIsLittle ? "little" : "big";
constexpr const char* kOtherByteOrder = kIsLittle ? "big" : "little";

// The magic of a frame is four characters. The last one counts the versions: "SCW3".
std::string wire_protocol() {
  std::string text;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    text += static_cast<char>((FrameHead::kMagic >> shift) & 0xFFU);
  }
  return text;
}

// Enough to see that two tokens differ, too little to guess a token from.
std::string digest_of(const std::string& token) {
  std::string text;
  for (const char byte : sign(token, "stagecraft token").substr(0, 4)) {
    text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  }
  return text;
}

// Replaces the entry of the same name, or appends the new one.
void replace(Fingerprint& fingerprint, const Fingerprint::value_type& entry) {
  std::erase_if(fingerprint, [&](const auto& known) { return known.first == entry.first; });
  fingerprint.push_back(entry);
}

}  // namespace

Fingerprint fingerprint_of_rank(const JoinOptions& options, int32_t num_ranks) {
  Fingerprint fingerprint = {{"version", std::string(version())},
                             {"number of ranks", std::to_string(num_ranks)},
                             {"torch", TORCH_VERSION},
                             {"byte order", kByteOrder},
                             {"wire protocol", wire_protocol()},
                             {"checksums", options.transport.use_checksums ? "on" : "off"}};
  if (!options.token.empty()) fingerprint.emplace_back("token", digest_of(options.token));
  for (const auto& entry : options.fingerprint) replace(fingerprint, entry);
  return fingerprint;
}

void write_fingerprint(ByteWriter& out, const Fingerprint& fingerprint) {
  out.put(static_cast<uint32_t>(fingerprint.size()));
  for (const auto& [name, value] : fingerprint) {
    out.put_text(name);
    out.put_text(value);
  }
}

Fingerprint read_fingerprint(ByteReader& in) {
  Fingerprint fingerprint;
  const auto count = in.get_count();
  for (std::size_t i = 0; i < count; ++i) {
    std::string name(in.get_text());
    fingerprint.emplace_back(std::move(name), in.get_text());
  }
  return fingerprint;
}

std::optional<Fingerprint> read_magic(ByteReader& in, Fingerprint mine) {
  const auto magic = in.get<uint32_t>();
  if (magic == kHandshakeMagic) return std::nullopt;
  const bool is_swapped = magic == swap_bytes(kHandshakeMagic);
  // The peer's fingerprint cannot be read, so the peer is described as this rank with one
  // difference. The comparison then names that difference only.
  replace(mine, {is_swapped ? "byte order" : "version",
                 is_swapped ? kOtherByteOrder : "one that joins differently"});
  return mine;
}

void require_same_fingerprints(const std::vector<Fingerprint>& by_rank) {
  require_agreement(describe_mismatch(by_rank));
}

}  // namespace stagecraft::detail
