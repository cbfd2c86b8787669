#include "cli/train/gpt.h"

#include <cmath>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {

namespace {

at::Tensor run(const Gpt& gpt, const at::Tensor& ids) {
  return gpt.body().forward({ids}, {}).toTensor();
}

at::Tensor find(const StageBody& body, const std::string& name) {
  for (const auto& [own, tensor] : body.parameters) {
    if (own == name) return tensor;
  }
  return {};
}

}  // namespace

TEST(Gpt, IsCausal) {
  for (const Positions positions : {Positions::kRotary, Positions::kLearned}) {
    GptSizes sizes = small_sizes();
    sizes.positions = positions;
    const Gpt gpt(sizes, 1);
    const at::Tensor ids = at::randint(0, 32, {2, 8}, at::kLong);
    const at::Tensor changed = ids.clone();
    changed.select(1, 5).copy_(ids.select(1, 5).add(1).remainder(32));
    const at::Tensor a = run(gpt, ids);
    const at::Tensor b = run(gpt, changed);
    EXPECT_EQ(a.sizes(), (at::IntArrayRef{2, 8, 32}));
    EXPECT_TRUE(at::allclose(a.slice(1, 0, 5), b.slice(1, 0, 5)));
    EXPECT_FALSE(at::allclose(a.slice(1, 5), b.slice(1, 5)));
  }
}

TEST(Gpt, KnowsPositions) {
  // Without positions a transformer gives the same for a text of one letter at every place.
  GptSizes sizes = small_sizes();
  sizes.positions = Positions::kLearned;
  EXPECT_FALSE(at::allclose(run(Gpt(sizes, 1), at::full({1, 8}, 3, at::kLong)).select(1, 2),
                            run(Gpt(sizes, 1), at::full({1, 8}, 3, at::kLong)).select(1, 7)));
  // Rotary ones say how far two letters are apart, and so which came first.
  const at::Tensor there = at::arange(8).view({1, 8});
  const at::Tensor back = at::stack({there[0][1], there[0][0]}).view({1, 2});
  const Gpt rotary(small_sizes(), 1);
  EXPECT_FALSE(at::allclose(run(rotary, at::cat({back, there.slice(1, 2)}, 1)).select(1, 7),
                            run(rotary, there).select(1, 7), 1e-7, 1e-7));
}

TEST(Gpt, TiesItsEmbeddings) {
  GptSizes sizes = small_sizes();
  EXPECT_FALSE(find(Gpt(sizes, 1).body(), "head.proj.weight").defined());
  sizes.is_tied = false;
  EXPECT_TRUE(find(Gpt(sizes, 1).body(), "head.proj.weight").defined());
}

TEST(Gpt, StartsFromItsSeedAlone) {
  const Gpt a(small_sizes(), 4);
  at::manual_seed(99);
  const Gpt b(small_sizes(), 4);
  const Gpt c(small_sizes(), 5);
  const std::string name = "blocks.2.up.weight";
  EXPECT_TRUE(at::equal(find(a.body(), name), find(b.body(), name)));
  EXPECT_FALSE(at::equal(find(a.body(), name), find(c.body(), name)));
  EXPECT_NEAR(find(a.body(), name).std().item<double>(), 0.02, 0.003);
  EXPECT_NEAR(find(a.body(), "blocks.2.down.weight").std().item<double>(), 0.02 / std::sqrt(8.0),
              0.002);
}

TEST(Gpt, IsCutByNameAndTakesAnyLength) {
  const Gpt gpt(small_sizes(), 1);
  const Pipe pipe =
      gpt.cut({.points = {{"blocks.1", SplitPoint::kBeginning}, {"head", SplitPoint::kBeginning}}},
              {.max_rows = 20});
  ASSERT_EQ(pipe.num_stages(), 3);
  for (const int64_t length : {1, 2, 5, 8}) {
    for (const int64_t rows : {1, 3, 20}) {
      const at::Tensor ids = at::randint(0, 32, {rows, length}, at::kLong);
      EXPECT_TRUE(at::equal(pipe.run({ids}).toTensor(), run(gpt, ids))) << rows << " x " << length;
    }
  }
  EXPECT_ERROR(pipe.run({at::zeros({1, 9}, at::kLong)}), MetadataError, "9");
}

TEST(Gpt, RefusesSizesThatDoNotFit) {
  GptSizes sizes = small_sizes();
  sizes.heads = 3;
  EXPECT_ERROR(Gpt(sizes, 1), ArgumentError, "a width that 3 heads divide, got 16");
  sizes.heads = 16;
  EXPECT_ERROR(Gpt(sizes, 1), ArgumentError, "an even width of each head, got 1");
  sizes.layers = 0;
  EXPECT_ERROR(Gpt(sizes, 1), ArgumentError, "layers of at least 1, got 0");
  sizes = small_sizes();
  sizes.dropout = 1;
  EXPECT_ERROR(Gpt(sizes, 1), ArgumentError, "dropout from 0 to below 1, got 1");
}

}  // namespace stagecraft
