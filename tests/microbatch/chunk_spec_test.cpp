#include "stagecraft/microbatch/chunk_spec.h"

#include <ATen/ops/ones.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

ReduceFn keep_last() {
  return [](const c10::IValue&, const c10::IValue& chunk) { return chunk; };
}

TEST(ChunkSpec, MakersKeepTheNesting) {
  EXPECT_EQ(to_text(ChunkSpec(2)), "TensorChunkSpec(2)");
  EXPECT_EQ(to_text(ChunkSpec::tuple({0, 0, 1})),
            "(TensorChunkSpec(0), TensorChunkSpec(0), TensorChunkSpec(1))");
  EXPECT_EQ(to_text(ChunkSpec::dict({{"id", 0}, {"mask", 1}})),
            "{\"id\": TensorChunkSpec(0), \"mask\": TensorChunkSpec(1)}");
  EXPECT_EQ(to_text(ChunkSpec::tuple({-1, ChunkSpec::list({Replicate{}, NoSpec{}}),
                                      ChunkSpec::dict({{"loss", LossReducer{}}}),
                                      CustomReducer{0, keep_last()}})),
            "(TensorChunkSpec(-1), [Replicate, None], {\"loss\": LossReducer}, CustomReducer)");
  EXPECT_EQ(to_text(ChunkSpec::tuple({})), "()");
}

TEST(ChunkSpec, FromDimsTakesAnyNestOfIntegers) {
  const auto spec =
      ChunkSpec::from_dims(tree::tuple({0, tree::dict({{"mask", tree::tuple({1, -2})}})}));
  EXPECT_EQ(to_text(spec),
            "(TensorChunkSpec(0), {\"mask\": (TensorChunkSpec(1), TensorChunkSpec(-2))})");
  EXPECT_ERROR(ChunkSpec::from_dims(tree::tuple({0, tree::dict({{"mask", "x"}})})), ArgumentError,
               "dims[1][\"mask\"]: expected a dimension, got \"x\"");
}

TEST(ChunkSpec, DefaultCutsTensorsAndBlockMasksAndReplicatesTheRest) {
  const auto mask = make_opaque(create_block_mask(causal_mask(), 1, 1, 8, 8, 4));
  const auto spec = ChunkSpec::default_for(
      tree::tuple({at::ones({2}), mask, c10::IValue(), 3, "s", at::Tensor(), tree::list({true})}));
  EXPECT_EQ(to_text(spec),
            "(TensorChunkSpec(0), TensorChunkSpec(0), Replicate, Replicate, Replicate, Replicate, "
            "[Replicate])");
  EXPECT_EQ(kDefaultChunkDim, 0);
}

TEST(ChunkSpec, TextParsesBack) {
  for (const auto* text :
       {"TensorChunkSpec(0)", "TensorChunkSpec(-3)", "Replicate", "None", "LossReducer", "()",
        "(TensorChunkSpec(0), [Replicate, {\"a\": None}], (LossReducer,))"}) {
    EXPECT_EQ(to_text(parse_chunk_spec(text)), text);
  }
}

TEST(ChunkSpec, BadTextSaysWhere) {
  EXPECT_ERROR(parse_chunk_spec("(TensorChunkSpec(x),)"), ParseError,
               "line 1, column 18: expected an integer, got 'x'");
  EXPECT_ERROR(parse_chunk_spec("TensorChunkSpec"), ParseError, "expected '(', got the end");
  EXPECT_ERROR(parse_chunk_spec("[Copy]"), ParseError,
               "line 1, column 2: expected TensorChunkSpec(dim), Replicate, LossReducer or None, "
               "got 'Copy'");
  EXPECT_ERROR(parse_chunk_spec("7"), ParseError, "got '7'");
  EXPECT_ERROR(parse_chunk_spec("CustomReducer"), ParseError,
               "a function, which cannot be parsed from text");
}

TEST(ChunkSpec, MisuseIsRefusedWhenItIsMade) {
  EXPECT_ERROR(ChunkSpec(CustomReducer{0, nullptr}), ArgumentError, "expected a function");
  EXPECT_ERROR(ChunkSpec::dict({{"a", 0}, {"a", 1}}), ArgumentError, "the key \"a\" twice");
}

}  // namespace
}  // namespace stagecraft
