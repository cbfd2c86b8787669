#include "stagecraft/transport/wire/progress_codec.h"

#include <cstdint>

#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {

std::string encode_progress(const std::optional<RankProgress>& progress) {
  if (!progress) return {};
  ByteWriter out;
  out.put_text(progress->finished);
  out.put_text(progress->is_in);
  out.put_text(progress->waits_for);
  out.put(progress->from);
  out.put(static_cast<int64_t>(progress->waits.count()));
  return out.take();
}

std::optional<RankProgress> decode_progress(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  ByteReader in(bytes);
  RankProgress progress;
  progress.finished = in.get_text();
  progress.is_in = in.get_text();
  progress.waits_for = in.get_text();
  progress.from = in.get<int32_t>();
  progress.waits = std::chrono::milliseconds(in.get<int64_t>());
  return progress;
}

}  // namespace stagecraft::detail
