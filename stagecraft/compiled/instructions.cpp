#include "stagecraft/compiled/instructions.h"

#include <algorithm>
#include <array>

#include "stagecraft/base/error.h"
#include "stagecraft/base/read_file.h"

namespace stagecraft::detail {
namespace {

/// Beginnings of the flags of x86_64 that name instruction sets. "pni" is SSE3, "abm" includes
/// lzcnt.
constexpr std::array<std::string_view, 24> kFamilies = {
    "abm",    "adx",  "aes",     "amx",   "avx",       "bmi",  "cx16",       "f16c",
    "fma",    "gfni", "lahf_lm", "movbe", "pclmulqdq", "pni",  "popcnt",     "rdrand",
    "rdseed", "sha",  "sse",     "ssse3", "tbm",       "vaes", "vpclmulqdq", "xop"};

bool is_instruction_set(std::string_view flag) {
  return std::any_of(kFamilies.begin(), kFamilies.end(),
                     [&](std::string_view family) { return flag.starts_with(family); });
}

/// Whether a feature of aarch64 describes the kernel, not the processor.
bool is_of_kernel(std::string_view feature) {
  return feature == "cpuid" || feature == "evtstrm";
}

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

/// Removes the word at the beginning and returns it. Empty at the end.
std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const std::string_view word = text.substr(0, text.find_first_of(kSpaces));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

std::vector<std::string> instructions_of(std::string_view cpuinfo) {
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix(std::min(line.size() + 1, cpuinfo.size()));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view name = trimmed(line.substr(0, colon));
    if (name != "Features" && name != "flags") continue;
    // The first processor is enough, because the kernel lists the same words for all processors.
    std::vector<std::string> found;
    std::string_view rest = line.substr(colon + 1);
    for (std::string_view word = take_word(rest); !word.empty(); word = take_word(rest)) {
      const bool counts = name == "Features" ? !is_of_kernel(word) : is_instruction_set(word);
      if (counts) found.emplace_back(word);
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
  return {};
}

const std::vector<std::string>& instructions_here() {
  static const std::vector<std::string> here = [] {
    try {
      return instructions_of(read_file("/proc/cpuinfo"));
    } catch (const FileError&) {
      return std::vector<std::string>();
    }
  }();
  return here;
}

std::vector<std::string> missing_instructions(std::span<const std::string> needed,
                                              std::span<const std::string> here) {
  std::vector<std::string> missing;
  for (const std::string& word : needed) {
    if (std::find(here.begin(), here.end(), word) == here.end()) missing.push_back(word);
  }
  return missing;
}

}  // namespace stagecraft::detail
