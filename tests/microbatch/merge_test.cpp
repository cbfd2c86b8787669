#include "stagecraft/microbatch/merge.h"

#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/tree/tree.h"
#include "stagecraft/tree/tree_text.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Chunks = std::vector<c10::IValue>;

TEST(Merge, WithoutASpecConcatenatesEveryLeafAlongTheBatch) {
  const Chunks chunks = {tree::tuple({at::ones({2, 3}), tree::list({at::zeros({1})})}),
                         tree::tuple({at::zeros({1, 3}), tree::list({at::ones({2})})})};
  const auto merged = merge_chunks(chunks);
  EXPECT_EQ(to_text(tree::flatten(merged).spec), "(*, [*])");
  EXPECT_TRUE(at::equal(tree::leaves(merged)[0].toTensor(),
                        at::cat({at::ones({2, 3}), at::zeros({1, 3})})));
  EXPECT_EQ(tree::leaves(merged)[1].toTensor().size(0), 3);
}

TEST(Merge, TheSpecGivesTheStructureAndDictsMatchByKey) {
  const Chunks chunks = {tree::dict({{"a", at::zeros({2, 1})}, {"b", 1}}),
                         tree::dict({{"b", 1}, {"a", at::ones({2, 2})}})};
  const auto merged = merge_chunks(chunks, ChunkSpec::dict({{"b", Replicate{}}, {"a", 1}}));
  EXPECT_EQ(to_text(tree::flatten(merged).spec), "{\"b\": *, \"a\": *}");
  EXPECT_EQ(merged.toGenericDict().at("a").toTensor().sizes(), (std::vector<int64_t>{2, 3}));
}

TEST(Merge, CustomReducersFoldInTheOrderOfTheChunks) {
  const CustomReducer join{"", [](const c10::IValue& acc, const c10::IValue& chunk) {
                             return c10::IValue(acc.toStringRef() + chunk.toStringRef());
                           }};
  EXPECT_EQ(merge_chunks(Chunks{"a", "b", "c"}, ChunkSpec(join)).toStringRef(), "abc");
}

TEST(Merge, LossesAreSummed) {
  const Chunks tensors = {at::scalar_tensor(1.5), at::scalar_tensor(2.0)};
  EXPECT_EQ(merge_chunks(tensors, ChunkSpec(LossReducer{})).toTensor().item<float>(), 3.5f);
  EXPECT_EQ(merge_chunks(Chunks{1, 2.5}, ChunkSpec(LossReducer{})).toTensor().item<float>(), 3.5f);
}

TEST(Merge, LossesKeepTheirHistory) {
  const auto x = at::ones({}).set_requires_grad(true);
  merge_chunks(Chunks{x.mul(2), x.mul(3)}, ChunkSpec(LossReducer{})).toTensor().backward();
  EXPECT_EQ(x.grad().item<float>(), 5);
}

TEST(Merge, ReplicatedValuesMustAgree) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(merge_chunks(Chunks{3, 3}, ChunkSpec(Replicate{})).toInt(), 3);
  EXPECT_TRUE(merge_chunks(Chunks{nan, nan}, ChunkSpec(Replicate{})).isDouble());
  EXPECT_TRUE(merge_chunks(Chunks{1, 1.0, true}, ChunkSpec(Replicate{})).isInt());
  EXPECT_ERROR(merge_chunks(Chunks{1, 1.5}, ChunkSpec(Replicate{})), MetadataError,
               "expected the value of chunk 0, 1, got 1.5");
  // No spec for a leaf means the same; several elements compare as one value.
  EXPECT_TRUE(
      at::equal(merge_chunks(Chunks{at::ones({3}), at::ones({3})}, ChunkSpec(NoSpec{})).toTensor(),
                at::ones({3})));
  EXPECT_ERROR(merge_chunks(Chunks{tree::tuple({1}), tree::tuple({1}), tree::tuple({2})},
                            ChunkSpec::tuple({Replicate{}})),
               MetadataError, "chunks[2][0]: expected the value of chunk 0, 1, got 2");
  EXPECT_ERROR(merge_chunks(Chunks{at::ones({2}), at::zeros({2})}, ChunkSpec(Replicate{})),
               MetadataError, "with different elements");
}

TEST(Merge, MaskedChunksContributeTheirOwnPart) {
  const Chunks chunks = {at::full({2, 5}, 1), at::full({2, 5}, 2)};
  const auto merged = merge_chunks(chunks, ChunkSpec(-1), {.masked_debug = true}).toTensor();
  EXPECT_TRUE(at::equal(merged, at::cat({at::full({2, 3}, 1), at::full({2, 2}, 2)}, 1)));
  EXPECT_ERROR(
      merge_chunks(Chunks{at::ones({4}), at::ones({3})}, ChunkSpec(0), {.masked_debug = true}),
      MetadataError, "chunks[1]: chunks of a masked split have the full size");
}

TEST(MergeMisuse, NoChunks) {
  EXPECT_ERROR(merge_chunks({}), ArgumentError, "chunks: expected at least one, got none");
}

TEST(MergeMisuse, OtherStructuresNameThePath) {
  const Chunks chunks = {tree::tuple({at::ones({1}), at::ones({1})}), tree::tuple({at::ones({1})})};
  EXPECT_ERROR(merge_chunks(chunks), MetadataError,
               "chunks[1]: expected tuple of 2, got tuple of 1");
  EXPECT_ERROR(merge_chunks(chunks, ChunkSpec::tuple({0})), MetadataError,
               "chunks[0]: expected tuple of 1, got tuple of 2");
  EXPECT_ERROR(
      merge_chunks(Chunks{tree::dict({{"y", tree::list({1})}})}, ChunkSpec::dict({{"y", 0}})),
      MetadataError, "chunks[0][\"y\"]: expected leaf, got list of 1");
}

TEST(MergeMisuse, LeavesThatCannotBeConcatenated) {
  EXPECT_ERROR(merge_chunks(Chunks{tree::dict({{"n", 3}})}), MetadataError,
               "chunks[0][\"n\"]: only tensors can be concatenated, got 3; give it Replicate");
  EXPECT_ERROR(
      merge_chunks(Chunks{at::ones({1}), at::ones({})}), MetadataError,
      "chunks[1]: Tensor[] float32 has no dimension 0 to concatenate along; give it a reducer");
  EXPECT_ERROR(merge_chunks(Chunks{at::ones({1})}, ChunkSpec(1)), MetadataError,
               "chunks[0]: Tensor[1] float32 has no dimension 1");
  EXPECT_ERROR(merge_chunks(Chunks{at::ones({2, 3}), at::ones({2, 3}), at::ones({2, 4})}),
               MetadataError,
               "chunks[2]: cannot concatenate Tensor[2, 4] float32 along 0 with Tensor[2, 3] "
               "float32 of chunk 0");
  EXPECT_ERROR(
      merge_chunks(Chunks{at::ones({2, 2}), at::ones({2, 2}).to_sparse()}), MetadataError,
      "chunks[1]: only dense tensors can be concatenated, got Tensor[2, 2] float32 sparse");
  EXPECT_ERROR(merge_chunks(Chunks{at::ones({2}), at::ones({3})}, ChunkSpec(LossReducer{})),
               MetadataError,
               "chunks[1]: LossReducer cannot add Tensor[3] float32 to the sum before it, "
               "Tensor[2] float32");
  EXPECT_ERROR(merge_chunks(Chunks{"a", "b"}, ChunkSpec(LossReducer{})), MetadataError,
               "chunks[0]: LossReducer adds tensors and numbers, got \"a\"");
}

}  // namespace
}  // namespace stagecraft
