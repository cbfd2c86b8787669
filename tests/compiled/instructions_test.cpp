#include "stagecraft/compiled/instructions.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// python/tests/compile_package_test.py has the same texts and results.
TEST(Instructions, AreAllFeaturesOfAnAarch64) {
  EXPECT_THAT(instructions_of("processor\t: 0\nBogoMIPS\t: 50.00\n"
                              "Features\t: fp asimd sve crc32  asimddp\nCPU part\t: 0xd0c\n\n"
                              "processor\t: 1\nFeatures\t: fp\n"),
              ElementsAre("asimd", "asimddp", "crc32", "fp", "sve"));
}

TEST(Instructions, AreTheInstructionSetsAmongTheFlagsOfAnX86) {
  EXPECT_THAT(instructions_of("processor\t: 0\nmodel name\t: flags of avx\n"
                              "vmx flags\t: avx512_invented ept\n"
                              "flags\t\t: fpu vme sse sse2 ht pni ssse3 fma cx16 sse4_1 sse4_2 avx "
                              "hypervisor avx2 bmi1 bmi2 avx512f sha_ni amx_tile abm nopl\n"
                              "bugs\t\t: spectre_v1\n"),
              ElementsAre("abm", "amx_tile", "avx", "avx2", "avx512f", "bmi1", "bmi2", "cx16",
                          "fma", "pni", "sha_ni", "sse", "sse2", "sse4_1", "sse4_2", "ssse3"));
}

TEST(Instructions, AreUnknownInOtherTexts) {
  EXPECT_THAT(instructions_of(""), IsEmpty());
  EXPECT_THAT(instructions_of("processor : 0\nflags"), IsEmpty());
  EXPECT_THAT(instructions_of("isa\t: rv64imafdc\n"), IsEmpty());
  EXPECT_THAT(instructions_of("Features\t:"), IsEmpty());
}

TEST(Instructions, AreMissingIfTheProcessorDoesNotHaveThem) {
  const std::vector<std::string> here = {"avx", "avx2", "fma"};
  EXPECT_THAT(missing_instructions(std::vector<std::string>{"avx", "avx512f", "amx_tile"}, here),
              ElementsAre("avx512f", "amx_tile"));
  EXPECT_THAT(missing_instructions(here, here), IsEmpty());
  EXPECT_THAT(missing_instructions({}, here), IsEmpty());
}

}  // namespace
}  // namespace stagecraft::detail
