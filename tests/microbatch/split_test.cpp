#include "stagecraft/microbatch/split.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

std::vector<int64_t> sizes_along(const std::vector<Arguments>& chunks, int64_t dim) {
  std::vector<int64_t> sizes;
  for (const auto& chunk : chunks) sizes.push_back(chunk.args.at(0).toTensor().size(dim));
  return sizes;
}

std::vector<c10::IValue> args_of(const std::vector<Arguments>& chunks) {
  std::vector<c10::IValue> out;
  for (const auto& chunk : chunks) out.push_back(tree::tuple(chunk.args));
  return out;
}

// PyTorch's test_split_and_merge: three tensors as args and as kwargs into two chunks.
TEST(Split, ArgsAndKwargsGiveTheOriginalBackWhenMerged) {
  const auto x0 = at::randn({128, 512});
  const auto x1 = at::randn({256, 1024});
  const auto x2 = at::randn({512, 2048});
  const auto chunks =
      split_args_kwargs_into_chunks({x0, x1, x2}, {{"x0", x0}, {"x1", x1}, {"x2", x2}}, 2);
  ASSERT_EQ(chunks.size(), 2u);
  std::vector<c10::IValue> kwargs;
  for (const auto& chunk : chunks) {
    ASSERT_EQ(chunk.args.size(), 3u);
    EXPECT_EQ(chunk.args[0].toTensor().sizes(), (std::vector<int64_t>{64, 512}));
    EXPECT_EQ(chunk.args[1].toTensor().sizes(), (std::vector<int64_t>{128, 1024}));
    EXPECT_EQ(chunk.kwargs.get("x2").toTensor().sizes(), (std::vector<int64_t>{256, 2048}));
    kwargs.push_back(tree::dict({chunk.kwargs.begin(), chunk.kwargs.end()}));
  }
  EXPECT_TRUE(tree::equal(merge_chunks(args_of(chunks), ChunkSpec::tuple({0, 0, 0})),
                          tree::tuple({x0, x1, x2})));
  EXPECT_TRUE(tree::equal(merge_chunks(kwargs, ChunkSpec::dict({{"x0", 0}, {"x1", 0}, {"x2", 0}})),
                          tree::dict({{"x0", x0}, {"x1", x1}, {"x2", x2}})));
}

// The part of PyTorch's test_chunk_spec that is about specs.
TEST(Split, SpecsFromTuplesAndDictsOfDimensions) {
  const auto x = at::randn({4, 6});
  const auto chunks = split_args_kwargs_into_chunks(
      {x, x, x}, {{"y", x}}, 2,
      {.args_spec = ChunkSpec::tuple({0, 0, 1}), .kwargs_spec = ChunkSpec::dict({{"y", -1}})});
  EXPECT_EQ(chunks[1].args[0].toTensor().sizes(), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(chunks[1].args[2].toTensor().sizes(), (std::vector<int64_t>{4, 3}));
  EXPECT_TRUE(at::equal(chunks[1].kwargs.get("y").toTensor(), x.narrow(1, 3, 3)));
}

// PyTorch's test_split_block_mask_none.
TEST(Split, NoneStaysNoneInEveryChunk) {
  const auto x = at::randn({8, 2});
  const auto chunks =
      split_args_kwargs_into_chunks({x, c10::IValue()}, {{"mask", c10::IValue()}}, 4);
  ASSERT_EQ(chunks.size(), 4u);
  for (const auto& chunk : chunks) {
    EXPECT_TRUE(chunk.args[1].isNone());
    EXPECT_TRUE(chunk.kwargs.get("mask").isNone());
  }
}

TEST(Split, UnevenSizesAreThoseOfTensorSplit) {
  EXPECT_THAT(sizes_along(split_args_kwargs_into_chunks({at::zeros({8, 2})}, {}, 3), 0),
              testing::ElementsAre(3, 3, 2));
  EXPECT_THAT(sizes_along(split_args_kwargs_into_chunks({at::zeros({7})}, {}, 5), 0),
              testing::ElementsAre(2, 2, 1, 1, 1));
  EXPECT_THAT(sizes_along(split_args_kwargs_into_chunks({at::zeros({2, 10})}, {}, 4,
                                                        {.args_spec = ChunkSpec::tuple({-1})}),
                          1),
              testing::ElementsAre(3, 3, 2, 2));
}

TEST(Split, GivesFewerChunksWhereABatchIsSmaller) {
  EXPECT_EQ(split_args_kwargs_into_chunks({at::zeros({3})}, {}, 8).size(), 3u);
  // kwargs with fewer rows decide for args too.
  const auto chunks = split_args_kwargs_into_chunks({at::arange(8)}, {{"y", at::arange(2)}}, 4);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1].args[0].toTensor().size(0), 4);
  EXPECT_EQ(chunks[1].kwargs.get("y").toTensor().size(0), 1);
}

TEST(Split, LogsWhyThereAreFewerChunks) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  set_log_level(LogLevel::kInfo);
  split_args_kwargs_into_chunks({at::zeros({8})}, {{"y", at::zeros({2, 5})}}, 4);
  split_args_kwargs_into_chunks({at::zeros({8})}, {}, 4);
  set_log_level(LogLevel::kOff);
  set_log_sink({});
  EXPECT_THAT(lines,
              testing::ElementsAre(
                  "split into 2 chunks instead of 4: kwargs[\"y\"] is Tensor[2, 5] float32"));
}

TEST(Split, ScalarsStringsAndOtherLeavesAreReplicated) {
  const auto chunks = split_args_kwargs_into_chunks(
      {at::zeros({4}), 7, 0.5, "s", true, tree::list({1, 2}), at::Tensor()}, {}, 2);
  ASSERT_EQ(chunks.size(), 2u);
  for (const auto& chunk : chunks) {
    EXPECT_EQ(chunk.args[1].toInt(), 7);
    EXPECT_EQ(chunk.args[3].toStringRef(), "s");
    EXPECT_TRUE(chunk.args[5].isIntList());
    EXPECT_FALSE(chunk.args[6].toTensor().defined());
  }
}

TEST(Split, ReplicatedTensorsAreTheSameTensor) {
  const auto x = at::zeros({1, 4});
  const auto chunks = split_args_kwargs_into_chunks(
      {x, at::zeros({6})}, {}, 3, {.args_spec = ChunkSpec::tuple({Replicate{}, 0})});
  ASSERT_EQ(chunks.size(), 3u);
  for (const auto& chunk : chunks) EXPECT_TRUE(chunk.args[0].toTensor().is_same(x));
}

TEST(Split, KwargsAreMatchedByKeyNotByPosition) {
  const auto a = at::arange(12).view({2, 6});
  const auto b = at::arange(12).view({6, 2});
  const auto chunks = split_args_kwargs_into_chunks(
      {}, {{"a", a}, {"b", tree::dict({{"x", b}, {"y", 5}})}}, 2,
      {.kwargs_spec =
           ChunkSpec::dict({{"b", ChunkSpec::dict({{"y", Replicate{}}, {"x", 0}})}, {"a", 1}})});
  EXPECT_EQ(chunks[0].kwargs.get("a").toTensor().sizes(), (std::vector<int64_t>{2, 3}));
  const auto inner = chunks[0].kwargs.get("b").toGenericDict();
  EXPECT_EQ(inner.at("x").toTensor().sizes(), (std::vector<int64_t>{3, 2}));
  // The order is that of the values, not of the spec.
  EXPECT_EQ(chunks[0].kwargs.begin()->first, "a");
}

TEST(Split, ChunksAreViews) {
  const auto x = at::zeros({4, 2});
  const auto chunks = split_args_kwargs_into_chunks({x}, {}, 2);
  chunks[1].args[0].toTensor().fill_(3);
  EXPECT_EQ(x.sum().item<float>(), 12);
  EXPECT_TRUE(chunks[0].args[0].toTensor().is_alias_of(x));
}

TEST(Split, ChunksOfALeafThatRequiresGradReportTheirGradient) {
  const auto x = at::randn({4, 2}).set_requires_grad(true);
  const auto chunks = split_args_kwargs_into_chunks({x}, {}, 2);
  for (const auto& chunk : chunks) chunk.args[0].toTensor().pow(2).sum().backward();
  for (std::size_t c = 0; c < 2; ++c) {
    const auto part = chunks[c].args[0].toTensor();
    ASSERT_TRUE(part.grad().defined());
    EXPECT_TRUE(at::equal(part.grad(), part.detach().mul(2)));
  }
  EXPECT_TRUE(at::equal(x.grad(), x.detach().mul(2)));
}

TEST(Split, ChunksOfANonLeafOrWithoutGradKeepNoGradient) {
  const auto x = at::randn({4}).set_requires_grad(true);
  const auto chunks = split_args_kwargs_into_chunks({x.mul(2), at::randn({4})}, {}, 2);
  EXPECT_FALSE(chunks[0].args[0].toTensor().retains_grad());
  EXPECT_FALSE(chunks[0].args[1].toTensor().requires_grad());
}

// If nothing requires grad, slices are made without autograd. Users must not see a difference.
TEST(Split, ChunksBehaveAsThoseOfTensorSplit) {
  const auto x = at::randn({5, 3});
  const auto chunks = split_args_kwargs_into_chunks({x}, {}, 2);
  const auto expected = at::tensor_split(x, 2, 0);
  for (std::size_t c = 0; c < 2; ++c) {
    const auto part = chunks[c].args[0].toTensor();
    EXPECT_TRUE(at::equal(part, expected[c]));
    EXPECT_EQ(part.strides(), expected[c].strides());
    EXPECT_TRUE(part.is_view());
    EXPECT_TRUE(part._base().is_same(x));
  }
  // In-place work of a module on its input, with a weight that requires grad.
  const auto weight = at::ones({3}).set_requires_grad(true);
  const auto part = chunks[0].args[0].toTensor();
  const auto version = x._version();
  part.mul_(weight);
  EXPECT_GT(x._version(), version);
  part.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(Split, MaskedDebugKeepsTheFullSizeWithZerosElsewhere) {
  const auto x = at::arange(1, 6);
  const auto chunks = split_args_kwargs_into_chunks({x}, {}, 2, {.masked_debug = true});
  EXPECT_TRUE(at::equal(chunks[0].args[0].toTensor(), x.mul(x.le(3))));
  EXPECT_TRUE(at::equal(chunks[1].args[0].toTensor(), x.mul(x.gt(3))));
  EXPECT_TRUE(
      tree::equal(merge_chunks(args_of(chunks), ChunkSpec::tuple({0}), {.masked_debug = true}),
                  tree::tuple({x})));
}

TEST(Split, NothingToSplitGivesEmptyChunksAndIgnoresTheSpec) {
  const auto chunks =
      split_args_kwargs_into_chunks({}, {}, 3, {.args_spec = ChunkSpec::tuple({0, 1})});
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_TRUE(chunks[2].args.empty() && chunks[2].kwargs.empty());
  const auto hollow = split_args_kwargs_into_chunks({tree::tuple({})}, {}, 2);
  ASSERT_EQ(hollow.size(), 2u);
  EXPECT_TRUE(hollow[1].args[0].toTupleRef().elements().empty());
}

TEST(Split, TuplesAndListsOfSpecsMatchEachOther) {
  const auto chunks = split_args_kwargs_into_chunks(
      {tree::list({at::zeros({4}), 1})}, {}, 2,
      {.args_spec = ChunkSpec::list({ChunkSpec::tuple({0, Replicate{}})})});
  EXPECT_TRUE(chunks[0].args[0].isList());
}

TEST(SplitMisuse, ChunksMustBePositive) {
  EXPECT_ERROR(split_args_kwargs_into_chunks({at::zeros({4})}, {}, 0), ArgumentError,
               "chunks must be at least 1, got 0");
  EXPECT_ERROR(split_args_kwargs_into_chunks({at::zeros({4})}, {}, -2), ArgumentError, "got -2");
}

TEST(SplitMisuse, SpecsOfAnotherStructureNameThePlace) {
  const auto x = at::zeros({4});
  const auto split = [&](Args args, ChunkSpec spec) {
    return split_args_kwargs_into_chunks(args, {}, 2, {.args_spec = std::move(spec)});
  };
  EXPECT_ERROR(split({x, x}, ChunkSpec::tuple({0})), ArgumentError,
               "args_spec does not fit args, at args: expected tuple of 2, got tuple of 1");
  EXPECT_ERROR(split({x, tree::dict({{"mask", tree::list({x, x})}})},
                     ChunkSpec::tuple({0, ChunkSpec::dict({{"mask", 0}})})),
               ArgumentError, "at args[1][\"mask\"]: expected list of 2, got leaf");
  EXPECT_ERROR(split({tree::dict({{"a", x}})}, ChunkSpec::tuple({ChunkSpec::dict({{"b", 0}})})),
               ArgumentError, "at args[0]: the key \"a\" is missing");
  EXPECT_ERROR(split_args_kwargs_into_chunks(
                   {}, {{"x", x}}, 2, {.kwargs_spec = ChunkSpec::dict({{"x", 0}, {"y", 0}})}),
               ArgumentError,
               "kwargs_spec does not fit kwargs, at kwargs: the key \"y\" is not expected");
}

TEST(SplitMisuse, LeavesThatCannotBeCutAsTheirSpecSays) {
  const auto x = at::zeros({4, 8});
  const auto split = [&](c10::IValue value, ChunkSpec spec) {
    return split_args_kwargs_into_chunks({std::move(value)}, {}, 2,
                                         {.args_spec = ChunkSpec::tuple({std::move(spec)})});
  };
  EXPECT_ERROR(split(x, NoSpec{}), ArgumentError,
               "args[0]: Tensor[4, 8] float32 is split by TensorChunkSpec or Replicate, got None");
  EXPECT_ERROR(split(x, LossReducer{}), ArgumentError, "got LossReducer");
  EXPECT_ERROR(split(3, NoSpec{}), ArgumentError, "args[0]: 3 is split by");
  EXPECT_ERROR(
      split(3, 0), ArgumentError,
      "args[0]: TensorChunkSpec(0) splits tensors and opaque leaves that can be split, got 3");
  EXPECT_ERROR(split(c10::IValue(), 0), ArgumentError, "got None");
  EXPECT_ERROR(split(at::Tensor(), 0), ArgumentError, "got Tensor undefined");
  EXPECT_ERROR(split(at::zeros({2, 2}).to_sparse(), 0), ArgumentError,
               "args[0]: only dense tensors can be split, got Tensor[2, 2] float32 sparse");
  EXPECT_ERROR(split(x, 2), ArgumentError,
               "args[0]: TensorChunkSpec(2) is outside of Tensor[4, 8] float32");
  EXPECT_ERROR(split(x, -3), ArgumentError, "TensorChunkSpec(-3) is outside of");
  EXPECT_ERROR(split(at::zeros({0, 3}), 0), ArgumentError,
               "args[0]: TensorChunkSpec(0) of Tensor[0, 3] float32 has no elements to split");
  EXPECT_ERROR(split_args_kwargs_into_chunks({}, {{"t", tree::list({at::zeros({})})}}, 2),
               ArgumentError, "kwargs[\"t\"][0]: a tensor without dimensions cannot be split");
}

}  // namespace
}  // namespace stagecraft
