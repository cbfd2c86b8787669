"""The instruction sets that a compiler may use on this processor (-march=native)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["instructions_here", "instructions_of"]

# Beginnings of the flags of x86_64 that name instruction sets. "pni" is SSE3, "abm" includes lzcnt.
_FAMILIES = (
    *("abm", "adx", "aes", "amx", "avx", "bmi", "cx16", "f16c", "fma", "gfni", "lahf_lm", "movbe"),
    *("pclmulqdq", "pni", "popcnt", "rdrand", "rdseed", "sha", "sse", "ssse3", "tbm", "vaes", "vpclmulqdq", "xop"),
)


def instructions_of(cpuinfo: str) -> list[str]:
    """The instruction sets in a text of /proc/cpuinfo, sorted.

    On aarch64 these are the words of "Features" except cpuid and evtstrm, which describe the kernel. On x86_64 these
    are the words of "flags" that name instruction sets. Empty for any other text. stagecraft/compiled/instructions.cpp
    has the same rule.
    """
    for line in cpuinfo.split("\n"):
        name, colon, words = line.partition(":")
        if colon and name.strip() == "Features":
            return sorted(set(words.split()) - {"cpuid", "evtstrm"})
        if colon and name.strip() == "flags":
            return sorted({word for word in words.split() if word.startswith(_FAMILIES)})
    return []


def instructions_here() -> list[str]:
    """The instruction sets of this processor; empty if they are not known."""
    try:
        return instructions_of(Path("/proc/cpuinfo").read_text(errors="replace"))
    except OSError:
        return []
