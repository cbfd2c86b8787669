#include "stagecraft/attention/create_block_mask.h"

#include <algorithm>
#include <limits>
#include <random>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "tests/attention/reference.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

/// That the lists of a mask say what its grid says: wanted columns rising, then the rest rising.
void expect_lists(const at::Tensor& num, const at::Tensor& indices, const BlockGrid& grid,
                  BlockKind kind, bool transposed) {
  const int64_t rows = transposed ? grid.columns() : grid.rows();
  const int64_t columns = transposed ? grid.rows() : grid.columns();
  ASSERT_EQ(num.sizes(), (std::vector<int64_t>{grid.batch(), grid.heads(), rows}));
  ASSERT_EQ(indices.sizes(), (std::vector<int64_t>{grid.batch(), grid.heads(), rows, columns}));
  for (int64_t b = 0; b < grid.batch(); ++b) {
    for (int64_t h = 0; h < grid.heads(); ++h) {
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<int32_t> wanted;
        std::vector<int32_t> others;
        for (int64_t c = 0; c < columns; ++c) {
          const BlockKind at = transposed ? grid.at(b, h, c, row) : grid.at(b, h, row, c);
          (at == kind ? wanted : others).push_back(static_cast<int32_t>(c));
        }
        EXPECT_EQ(num[b][h][row].item<int32_t>(), static_cast<int32_t>(wanted.size()));
        wanted.insert(wanted.end(), others.begin(), others.end());
        const at::Tensor got = indices[b][h][row].contiguous();
        const auto* data = got.const_data_ptr<int32_t>();
        EXPECT_EQ(std::vector<int32_t>(data, data + columns), wanted);
      }
    }
  }
}

void expect_mask(const BlockMask& mask, const at::Tensor& dense, BlockSize block) {
  EXPECT_EQ(mask.grid().kinds(), reference::block_kinds(dense, block));
  EXPECT_EQ(mask.shape(),
            (std::array<int64_t, 4>{dense.size(0), dense.size(1), dense.size(2), dense.size(3)}));
  const BlockGrid& grid = mask.grid();
  expect_lists(mask.kv_num_blocks(), mask.kv_indices(), grid, BlockKind::kPartial, false);
  expect_lists(mask.full_kv_num_blocks(), mask.full_kv_indices(), grid, BlockKind::kFull, false);
  expect_lists(mask.q_num_blocks(), mask.q_indices(), grid, BlockKind::kPartial, true);
  expect_lists(mask.full_q_num_blocks(), mask.full_q_indices(), grid, BlockKind::kFull, true);
}

TEST(CreateBlockMask, CausalHasFullBlocksBelowTheDiagonal) {
  const auto mask = create_block_mask(causal_mask(), 1, 1, 12, 12, 4);
  using enum BlockKind;
  EXPECT_EQ(mask->grid().kinds(), (std::vector<BlockKind>{kPartial, kEmpty, kEmpty, kFull, kPartial,
                                                          kEmpty, kFull, kFull, kPartial}));
}

TEST(CreateBlockMask, BlocksBeyondTheLengthsAreNeverFull) {
  const auto mask = create_block_mask(no_mask(), 1, 1, 10, 13, {4, 3});
  using enum BlockKind;
  EXPECT_EQ(
      mask->grid().kinds(),
      (std::vector<BlockKind>{kFull, kFull, kFull, kFull, kPartial, kFull, kFull, kFull, kFull,
                              kPartial, kPartial, kPartial, kPartial, kPartial, kPartial}));
}

TEST(CreateBlockMask, EqualsALoopOverAllElements) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t batch = pick(1, 3);
    const int64_t heads = pick(1, 3);
    const int64_t q_len = pick(1, 40);
    const int64_t kv_len = pick(1, 40);
    const BlockSize block(pick(1, 9), pick(1, 9));
    // Coarse cells, so that empty and full blocks come up.
    const int64_t cell = pick(1, 20);
    const auto salt = static_cast<int64_t>(seed);
    const at::Tensor dense = reference::dense_mask(
        [&](auto b, auto h, auto q, auto kv) {
          return (b * 7 + h * 5 + q / cell * 3 + kv / cell * 11 + salt) % 3 != 0;
        },
        batch, heads, q_len, kv_len);
    expect_mask(*create_block_mask(reference::lookup(dense), batch, heads, q_len, kv_len, block),
                dense, block);
  }
}

TEST(CreateBlockMask, ABroadcastAnswerIsEnough) {
  const MaskFn keys_only = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor& kv) { return kv.lt(5).view({-1}); };
  const at::Tensor dense =
      reference::dense_mask([](auto, auto, auto, auto kv) { return kv < 5; }, 2, 3, 7, 11);
  expect_mask(*create_block_mask(keys_only, 2, 3, 7, 11, 3), dense, 3);
}

TEST(CreateBlockMask, NeverMakesTheWholeMask) {
  int64_t largest = 0;
  int64_t total = 0;
  const MaskFn counting = [&](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                              const at::Tensor& kv) {
    const int64_t size = b.numel() * h.numel() * q.numel() * kv.numel();
    largest = std::max(largest, size);
    total += size;
    return q.ge(kv);
  };
  const auto heads = create_block_mask(counting, 3, 3, 2048, 2048, 128);
  EXPECT_LE(largest, int64_t{1} << 24);
  EXPECT_EQ(total, int64_t{9} * 2048 * 2048);
  EXPECT_EQ(heads->grid().kept(), 9 * (16 * 17 / 2));

  largest = total = 0;
  const auto rows = create_block_mask(counting, 1, 1, 2100, 8192, 64);
  EXPECT_LE(largest, int64_t{1} << 24);
  EXPECT_EQ(total, int64_t{2100} * 8192);
  EXPECT_EQ(rows->grid().kept(), 33 * 34 / 2);
}

TEST(CreateBlockMask, BlocksMayBeMuchLargerThanTheLengths) {
  using enum BlockKind;
  for (const int64_t side :
       {int64_t{101}, int64_t{1} << 20, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    SCOPED_TRACE(testing::Message() << "side " << side);
    const auto kinds = [](const MaskFn& mask, BlockSize block) {
      return create_block_mask(mask, 1, 1, 100, 100, block)->grid().kinds();
    };
    EXPECT_EQ(kinds(no_mask(), side), std::vector<BlockKind>{kPartial});
    EXPECT_EQ(kinds(or_masks({}), side), std::vector<BlockKind>{kEmpty});
    EXPECT_EQ(kinds(no_mask(), {50, side}), (std::vector<BlockKind>{kPartial, kPartial}));
    EXPECT_EQ(kinds(causal_mask(), {side, 30}), (std::vector<BlockKind>(4, kPartial)));
    EXPECT_EQ(create_block_mask(causal_mask(), 2, 3, 100, 100, side)->shape(),
              (std::array<int64_t, 4>{2, 3, 100, 100}));
  }
  EXPECT_EQ(create_block_mask(no_mask(), 1, 1, 100, 100, 100)->grid().kinds(),
            std::vector<BlockKind>{kFull});
}

TEST(CreateBlockMask, BlocksLargerThanATileAreMadeInParts) {
  int64_t largest = 0;
  int64_t total = 0;
  int64_t hole = -1;
  const MaskFn with_hole = [&](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                               const at::Tensor& kv) {
    largest = std::max(largest, q.numel() * kv.numel());
    total += q.numel() * kv.numel();
    return q.ne(hole).logical_or(kv.ne(hole));
  };
  using enum BlockKind;
  const auto kinds = [&](int64_t length, int64_t block) {
    return create_block_mask(with_hole, 1, 1, length, length, block)->grid().kinds();
  };
  EXPECT_EQ(kinds(5000, 5000), std::vector<BlockKind>{kFull});
  EXPECT_LE(largest, int64_t{1} << 24);
  EXPECT_EQ(total, int64_t{5000} * 5000);
  EXPECT_EQ(kinds(5000, 5001), std::vector<BlockKind>{kPartial});
  hole = 4999;
  EXPECT_EQ(kinds(5000, 5000), std::vector<BlockKind>{kPartial});
  EXPECT_EQ(create_block_mask(or_masks({}), 1, 1, 5000, 5000, 5000)->grid().kept(), 0);
}

TEST(CreateBlockMask, RefusesMoreBlocksThanMemoryHolds) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_ERROR(
      create_block_mask(causal_mask(), kHuge, kHuge, 128, 128), ArgumentError,
      "a mask of [1099511627776, 1099511627776, 1, 1] blocks ([batch, heads, rows, columns]) is "
      "too large");
  EXPECT_ERROR(create_block_mask(causal_mask(), kHuge, 1, 128, 128), ArgumentError, "too large");
  EXPECT_ERROR(create_block_mask(causal_mask(), 1, 1, kHuge, 1, 1), ArgumentError, "too large");
  const at::Tensor num = at::zeros({1, 1, 4}, at::kInt);
  EXPECT_ERROR(
      BlockMask::from_kv_blocks(num, at::zeros({1, 1, 4, 4}, at::kInt), {}, {}, int64_t{1} << 62),
      ArgumentError, "4 blocks of 4611686018427387904 exceed");
}

TEST(CreateBlockMask, EmptyLengthsHaveNoBlocks) {
  const auto no_queries = create_block_mask(causal_mask(), 1, 1, 0, 13, 4);
  EXPECT_EQ(no_queries->kv_indices().sizes(), (std::vector<int64_t>{1, 1, 0, 4}));
  EXPECT_EQ(no_queries->q_indices().sizes(), (std::vector<int64_t>{1, 1, 4, 0}));
  const auto no_keys = create_block_mask(causal_mask(), 2, 1, 10, 0, 4);
  EXPECT_EQ(no_keys->kv_indices().sizes(), (std::vector<int64_t>{2, 1, 3, 0}));
}

TEST(CreateBlockMask, RecordsNoGradients) {
  const at::Tensor weight = at::ones({8}).set_requires_grad(true);
  const MaskFn mask = [&](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                          const at::Tensor&) { return weight.index({q}).gt(0); };
  EXPECT_EQ(create_block_mask(mask, 1, 1, 8, 8, 4)->grid().kept(), 4);
}

TEST(CreateBlockMask, RefusesWhatIsNoMask) {
  EXPECT_ERROR(create_block_mask({}, 1, 1, 8, 8), ArgumentError, "got an empty one");
  EXPECT_ERROR(create_block_mask(causal_mask(), 1, 1, -8, 8), ArgumentError,
               "must not be negative, got batch 1, heads 1, -8 queries and 8 keys");
  EXPECT_ERROR(create_block_mask(causal_mask(), 1, 1, 8, 8, 0), ArgumentError,
               "block sizes must be positive, got 0x0");
}

TEST(CreateBlockMask, RefusesAFunctionThatReturnsSomethingElse) {
  const auto returning = [](at::Tensor value) -> MaskFn {
    return [value](const auto&...) { return value; };
  };
  EXPECT_ERROR(create_block_mask(returning(at::ones({8, 8})), 1, 1, 8, 8), ArgumentError,
               "must return a bool tensor, got Tensor[8, 8] float32");
  EXPECT_ERROR(create_block_mask(returning({}), 1, 1, 8, 8), ArgumentError, "Tensor undefined");
  EXPECT_ERROR(create_block_mask(returning(at::ones({8, 7}, at::kBool)), 1, 1, 8, 8), ArgumentError,
               "returned Tensor[8, 7] bool, which does not broadcast to [1, 1, 8, 8]");
  EXPECT_ERROR(create_block_mask(returning(at::ones({1, 1, 1, 8, 8}, at::kBool)), 1, 1, 8, 8),
               ArgumentError, "does not broadcast");
  EXPECT_ERROR(
      create_block_mask(returning(at::ones({8, 8}, at::TensorOptions(at::kBool).device(at::kMeta))),
                        1, 1, 8, 8),
      ArgumentError, "returned a tensor on meta for indices on cpu");
}

}  // namespace
}  // namespace stagecraft
