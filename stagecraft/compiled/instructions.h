#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::detail {

/// The instruction sets that a compiler may use on the processor that a text of /proc/cpuinfo
/// describes, sorted. On aarch64 these are the words of "Features" except cpuid and evtstrm, on
/// x86_64 the words of "flags" that name instruction sets. Empty for any other text.
/// python/stagecraft/compile/instructions.py has the same rule.
std::vector<std::string> instructions_of(std::string_view cpuinfo);

/// The instruction sets of this processor; empty if they are not known.
const std::vector<std::string>& instructions_here();

/// The words of `needed` that are not in `here`.
std::vector<std::string> missing_instructions(std::span<const std::string> needed,
                                              std::span<const std::string> here);

}  // namespace stagecraft::detail
