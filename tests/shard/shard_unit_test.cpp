#include "stagecraft/shard/shard_unit.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "stagecraft/base/error.h"
#include "stagecraft/shard/storage_memory.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

ShardGroup two(int32_t own) {
  return {.members = {Rank(0), Rank(1)}, .own = own};
}

struct Parameters {
  at::Tensor weight = at::randn({30, 20}).requires_grad_();
  at::Tensor turned = at::randn({40, 50}).t().detach().requires_grad_();
  at::Tensor bias = at::randn({20}).requires_grad_();

  std::vector<ShardUnit::Parameter> named() const {
    return {{"weight", weight}, {"turned", turned}, {"bias", bias}};
  }
};

TEST(ShardUnit, ParametersStayWhatTheyWere) {
  for (const ShardKind kind : {ShardKind::kOptimizer, ShardKind::kGradients}) {
    const Parameters parameters;
    const at::Tensor weight = parameters.weight.detach().clone();
    const at::Tensor turned = parameters.turned.detach().clone();
    const ShardUnit unit({StageId(2)}, 0, parameters.named(), false, two(1), kind);
    EXPECT_TRUE(at::equal(parameters.weight, weight));
    EXPECT_TRUE(at::equal(parameters.turned, turned));
    EXPECT_EQ(parameters.turned.strides(), turned.strides());
    EXPECT_TRUE(parameters.weight.is_leaf() && parameters.weight.requires_grad());
    unit.check();
  }
}

// Pieces are parts of the parameters, so writes to either are seen by both.
TEST(ShardUnit, WritesToParametersTakeEffect) {
  const Parameters parameters;
  const ShardUnit unit({StageId(2)}, 0, parameters.named(), false, two(0), ShardKind::kGradients);
  const at::NoGradGuard no_grad;
  parameters.weight.fill_(3);
  ASSERT_EQ(unit.segments()[0].parameter, 0U);
  EXPECT_TRUE(unit.value(0).eq(3).all().item<bool>());
  unit.value(0).fill_(4);
  EXPECT_EQ(parameters.weight.view(-1)[0].item<double>(), 4);
}

TEST(ShardUnit, AReleasedParameterIsRefusedByName) {
  const Parameters parameters;
  const at::Tensor weight = parameters.weight.detach().clone();
  ShardUnit unit({StageId(2)}, 0, parameters.named(), false, two(0), ShardKind::kParameters);
  EXPECT_FALSE(unit.is_allocated());
  EXPECT_EQ(parameters.weight.sizes(), weight.sizes());
  const auto write = [&] {
    const at::NoGradGuard no_grad;
    parameters.weight.fill_(1);
  };
  if (is_access_refused()) {
    EXPECT_THAT(write, testing::Throws<std::exception>(testing::Property(
                           &std::exception::what,
                           testing::AllOf(testing::HasSubstr("stage 2: its parameters (weight, "),
                                          testing::HasSubstr("with_whole_parameters")))));
    EXPECT_THAT([&] { parameters.weight.sum(); }, testing::Throws<std::exception>());
  }
  unit.allocate();
  EXPECT_EQ(parameters.weight.view(-1)[0].item<double>(), weight.view(-1)[0].item<double>());
}

// What is written while the unit is whole is kept by `keep`, and found by check_unwritten.
TEST(ShardUnit, KeepsWhatWasWritten) {
  const Parameters parameters;
  ShardUnit unit({StageId(2)}, 0, parameters.named(), false, two(0), ShardKind::kParameters);
  unit.allocate();
  unit.check_unwritten();
  {
    const at::NoGradGuard no_grad;
    parameters.weight.fill_(5);
  }
  EXPECT_ERROR(unit.check_unwritten(), ArgumentError,
               "stage 2: parameter \"weight\" was written in place");
  unit.keep();
  unit.release();
  EXPECT_TRUE(unit.value(0).eq(5).all().item<bool>());
}

TEST(ShardUnit, NamesAParameterWhoseDataWasReplaced) {
  const Parameters parameters;
  const ShardUnit unit({StageId(2)}, 0, parameters.named(), false, two(0), ShardKind::kOptimizer);
  at::Tensor bias = parameters.bias;
  bias.set_data(at::randn({20}));
  EXPECT_ERROR(unit.check(), ArgumentError, "stage 2: the data of parameter \"bias\" was replaced");
}

TEST(ShardUnit, RefusesAParameterThatIsNotDense) {
  const at::Tensor every = at::randn({10, 4}).slice(1, 0, 2).detach().requires_grad_();
  EXPECT_ERROR(ShardUnit({StageId(1)}, 0, {{"every", every}}, false, two(0), ShardKind::kOptimizer),
               ArgumentError, "stage 1: parameter \"every\" cannot be sharded");
}

}  // namespace
}  // namespace stagecraft
