#include "stagecraft/plan/repeat.h"

#include <cmath>
#include <vector>

namespace stagecraft::plan {
namespace {

// The part [begin, begin + length) of a word. `begin` is the size of the word if there is no
// stretch.
struct Stretch {
  std::size_t begin = 0;
  std::size_t length = 0;
};

Stretch find_stretch(const Instance& in, const Word& word, int32_t rank, int32_t k, double middle) {
  int32_t kinds = 0;
  for (const int32_t s : in.on[rank]) kinds += in.is_split[s] ? 3 : 2;
  Stretch best{word.size(), static_cast<std::size_t>(kinds) * static_cast<std::size_t>(k)};
  std::vector<int32_t> counts(static_cast<std::size_t>(kKinds) * in.stages, 0);
  int32_t exact = 0;  // kinds that occur k times
  const auto add = [&](const Op& op, int32_t change) {
    int32_t& count = counts[op.kind * in.stages + op.stage];
    if (count == k) --exact;
    count += change;
    if (count == k) ++exact;
  };
  double nearest = 2;
  for (std::size_t i = 0; i < word.size(); ++i) {
    add(word[i], 1);
    if (i >= best.length) add(word[i - best.length], -1);
    if (i + 1 < best.length || exact != kinds) continue;
    const double center = (static_cast<double>(i + 1) - static_cast<double>(best.length) / 2) /
                          static_cast<double>(word.size());
    if (std::abs(center - middle) < nearest) {
      nearest = std::abs(center - middle);
      best.begin = i + 1 - best.length;
    }
  }
  return best;
}

}  // namespace

int32_t repeated_microbatches(int32_t ranks, int32_t microbatches) {
  const int32_t few = 3 * ranks;
  if (microbatches < few + 24) return 0;
  return few + (microbatches - few) % 12;
}

bool repeat_stretch(const Instance& in, const Words& words, int32_t k, int32_t times, double middle,
                    Words& out) {
  out.assign(words.size(), {});
  for (std::size_t r = 0; r < words.size(); ++r) {
    const Word& word = words[r];
    const Stretch stretch = find_stretch(in, word, static_cast<int32_t>(r), k, middle);
    if (stretch.begin == word.size()) return false;
    const auto begin = word.begin() + static_cast<std::ptrdiff_t>(stretch.begin);
    const auto end = begin + static_cast<std::ptrdiff_t>(stretch.length);
    out[r].assign(word.begin(), begin);
    for (int32_t i = 0; i <= times; ++i) out[r].insert(out[r].end(), begin, end);
    out[r].insert(out[r].end(), end, word.end());
    renumber(in, out[r]);
  }
  return true;
}

}  // namespace stagecraft::plan
