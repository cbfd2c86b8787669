#include <gtest/gtest.h>

#include "tests/oracle/cases.h"
#include "tests/oracle/mask_recipe.h"

namespace stagecraft::oracle {
namespace {

TEST(BlockMaskOracle, MasksAreThoseOfTorch) {
  const auto cases = read_cases("block_mask");
  EXPECT_GE(cases.size(), 80u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    expect_mask(*build_mask(cases[i].get("recipe")), cases[i].get("tensors"));
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace stagecraft::oracle
