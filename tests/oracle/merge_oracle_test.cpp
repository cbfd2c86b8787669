#include <optional>

#include <gtest/gtest.h>

#include "stagecraft/microbatch/merge.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"
#include "tests/oracle/cases.h"

namespace stagecraft::oracle {
namespace {

TEST(MergeOracle, MergedChunksAreThoseOfTorch) {
  const auto cases = read_cases("merge");
  EXPECT_GE(cases.size(), 100u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Case& item = cases[i];
    std::optional<ChunkSpec> spec;
    if (!item.get("spec").isNone()) spec = parse_chunk_spec(item.get("spec").toStringRef());
    const auto merged =
        merge_chunks(item.get("chunks").toListRef().vec(), spec, {item.get("masked").toBool()});
    ASSERT_TRUE(tree::equal(merged, item.get("merged")))
        << describe(merged) << " instead of " << describe(item.get("merged"));
  }
}

}  // namespace
}  // namespace stagecraft::oracle
