#include "stagecraft/stage/derived_seeds.h"

#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/random_generators.h"
#include "stagecraft/stage/random_scope.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

uint64_t seed_at(const at::Tensor& seeds, int64_t i) {
  return static_cast<uint64_t>(seeds.select(0, i).item().toLong());
}

TEST(DerivedSeeds, AreThoseOfTheScopes) {
  const std::vector<uint64_t> places = {3, kWholeModel, 12345678901234567890U};
  const at::Tensor seeds = derived_seeds(77, places, c10::kCPU);
  ASSERT_EQ(seeds.scalar_type(), at::kLong);
  ASSERT_EQ(seeds.size(0), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seed_at(seeds, i), mix_seed(77, 0, 0, places[static_cast<std::size_t>(i)]));
  }
  EXPECT_EQ(derived_seeds(77, {}, c10::kCPU).numel(), 0);
}

/// Stands for a capture: a replay writes the seeds of its sequences.
class Capture final : public detail::CapturedDraws {
 public:
  c10::Device device() const override { return c10::kCPU; }
  std::size_t open(const detail::ScopeSeed& seed) override {
    opened.push_back(seed);
    return opened.size() - 1;
  }
  at::Generator continue_at(std::size_t) override { return at::detail::createCPUGenerator(); }
  at::Tensor seeds_of(std::size_t first, std::size_t count) override {
    return memory.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count));
  }

  std::vector<detail::ScopeSeed> opened;
  at::Tensor memory = at::arange(100, 110, at::kLong);
};

TEST(DerivedSeeds, AreReadFromACapture) {
  Capture capture;
  capture.opened.resize(2);
  const detail::CapturedDrawsGuard guard(capture);
  const std::vector<uint64_t> places = {5, 6, 7};
  const at::Tensor seeds = derived_seeds(9, places, c10::kCPU);
  ASSERT_EQ(capture.opened.size(), 5U);
  EXPECT_EQ(capture.opened[3].derivation->base, 9U);
  EXPECT_EQ(capture.opened[3].derivation->place, 6U);
  EXPECT_EQ(capture.opened[3].seed, mix_seed(9, 0, 0, 6));
  EXPECT_EQ(seed_at(seeds, 0), 102U);
  EXPECT_EQ(seed_at(seeds, 2), 104U);
}

}  // namespace
}  // namespace stagecraft
