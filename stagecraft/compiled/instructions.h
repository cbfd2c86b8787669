#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::detail {

/// The instruction sets that a compiler may use on the processor that a text of /proc/cpuinfo
/// describes, sorted: on aarch64 all words of "Features", on x86_64 those words of "flags" that
/// name instruction sets. Empty for any other text. python/stagecraft/compile/instructions.py has
/// the same rule.
std::vector<std::string> instructions_of(std::string_view cpuinfo);

/// Those of this processor; empty if they cannot be found out.
const std::vector<std::string>& instructions_here();

/// The words of `needed` that `here` does not have.
std::vector<std::string> missing_instructions(std::span<const std::string> needed,
                                              std::span<const std::string> here);

}  // namespace stagecraft::detail
