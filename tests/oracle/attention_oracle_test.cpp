#include <optional>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/index.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/attention/flex_attention.h"
#include "tests/oracle/cases.h"
#include "tests/oracle/mask_recipe.h"

namespace stagecraft::oracle {
namespace {

using at::Tensor;
constexpr double kTolerance = 1e-5;

ScoreFn score_function(const std::string& name, const Tensor& table) {
  if (name == "bias") {
    return [table](const Tensor& score, const Tensor&, const Tensor& h, const Tensor& q,
                   const Tensor& kv) {
      return score.add(at::index(table, {h, q, kv}));
    };
  }
  if (name == "alibi") {
    return [](const Tensor& score, const Tensor&, const Tensor& h, const Tensor& q,
              const Tensor& kv) { return score.sub(h.add(1).mul(0.125).mul(q.sub(kv).abs())); };
  }
  if (name == "softcap") {
    return [](const Tensor& score, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
      return score.div(5).tanh().mul(5);
    };
  }
  return {};
}

void expect_close(const Tensor& actual, const Tensor& expected, const char* what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual, expected, kTolerance, kTolerance))
      << what << " differs by " << actual.sub(expected).abs().max().item<float>();
}

TEST(AttentionOracle, OutputsAndGradientsAreThoseOfTorch) {
  const auto cases = read_cases("attention");
  EXPECT_GE(cases.size(), 80u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Case& item = cases[i];
    const auto q = item.tensor("q").set_requires_grad(true);
    const auto k = item.tensor("k").set_requires_grad(true);
    const auto v = item.tensor("v").set_requires_grad(true);
    const auto table = item.tensor("table").set_requires_grad(true);
    FlexAttentionOptions options;
    options.score_fn = score_function(item.get("score").toStringRef(), table);
    if (!item.get("recipe").isNone()) options.block_mask = build_mask(item.get("recipe"));
    if (!item.get("scale").isNone()) options.scale = item.get("scale").toDouble();
    options.enable_gqa = item.get("gqa").toBool();

    const auto out = flex_attention(q, k, v, options);
    expect_close(out.detach(), item.tensor("out"), "out");
    out.backward(item.tensor("out_grad"));
    expect_close(q.grad(), item.tensor("q_grad"), "q.grad");
    expect_close(k.grad(), item.tensor("k_grad"), "k.grad");
    expect_close(v.grad(), item.tensor("v_grad"), "v.grad");
    const auto table_grad = item.tensor_or_none("table_grad");
    if (table_grad.defined()) expect_close(table.grad(), table_grad, "table.grad");
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace stagecraft::oracle
