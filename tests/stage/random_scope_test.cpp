#include "stagecraft/stage/random_scope.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/alpha_dropout.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/binomial.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/feature_dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rrelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/random_operators.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

at::Tensor default_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

at::Tensor draw_in_scope(uint64_t seed, const std::function<at::Tensor()>& draw) {
  const RandomScope scope(seed);
  return draw();
}

struct Drawing {
  std::string name;
  std::function<at::Tensor()> draw;
};

void PrintTo(const Drawing& drawing, std::ostream* out) {
  *out << drawing.name;
}

at::Tensor attend_with_dropout() {
  const at::Tensor x = at::ones({1, 2, 8, 4});
  return at::scaled_dot_product_attention(x, x, at::ones({1, 2, 8, 4}), std::nullopt, 0.5);
}

/// The modules are made outside of the scope, so that nothing but the dropout draws in it.
std::function<at::Tensor()> multi_head_with_dropout() {
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(4, 2).dropout(0.5));
  return [attention]() mutable {
    const at::Tensor x = at::ones({8, 1, 4});
    return std::get<0>(attention(x, x, x));
  };
}

std::function<at::Tensor()> lstm_with_dropout() {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 4).num_layers(2).dropout(0.5));
  return [lstm]() mutable { return std::get<0>(lstm(at::ones({8, 1, 4}))); };
}

const std::vector<Drawing>& drawings() {
  static const std::vector<Drawing> all = {
      {"rand", [] { return at::rand({64}); }},
      {"rand_out",
       [] {
         at::Tensor out = at::empty({64});
         return at::rand_out(out, {64});
       }},
      {"rand_like", [] { return at::rand_like(at::ones({64})); }},
      {"rand_generator_none", [] { return at::rand({64}, std::optional<at::Generator>()); }},
      {"randn", [] { return at::randn({65}); }},
      {"randn_like", [] { return at::randn_like(at::ones({64})); }},
      {"randint", [] { return at::randint(1000000, {64}); }},
      {"randint_low", [] { return at::randint(5, 1000000, {64}); }},
      {"randint_like", [] { return at::randint_like(at::ones({64}), 1000000); }},
      {"randperm", [] { return at::randperm(64); }},
      {"normal_float_float", [] { return at::normal(0.0, 1.0, {64}); }},
      {"normal_tensor_float", [] { return at::normal(at::zeros({64}), 1.0); }},
      {"normal_float_tensor", [] { return at::normal(0.0, at::ones({64})); }},
      {"normal_tensors", [] { return at::normal(at::zeros({64}), at::ones({64})); }},
      {"normal_", [] { return at::empty({64}).normal_(); }},
      {"bernoulli", [] { return at::bernoulli(at::full({64}, 0.5)); }},
      {"bernoulli_p", [] { return at::bernoulli(at::ones({64}), 0.5); }},
      {"bernoulli_float_", [] { return at::empty({64}).bernoulli_(0.5); }},
      {"bernoulli_tensor_", [] { return at::empty({64}).bernoulli_(at::full({64}, 0.5)); }},
      {"bernoulli_out",
       [] {
         at::Tensor out = at::empty({64});
         return at::bernoulli_out(out, at::full({64}, 0.5), std::optional<at::Generator>());
       }},
      {"uniform_", [] { return at::empty({64}).uniform_(); }},
      {"random_", [] { return at::empty({64}, at::kLong).random_(); }},
      {"random_to_", [] { return at::empty({64}, at::kLong).random_(1000000); }},
      {"random_from_", [] { return at::empty({64}, at::kLong).random_(5, 1000000); }},
      {"exponential_", [] { return at::empty({64}).exponential_(); }},
      {"cauchy_", [] { return at::empty({64}).cauchy_(); }},
      {"log_normal_", [] { return at::empty({64}).log_normal_(); }},
      {"geometric_", [] { return at::empty({64}).geometric_(0.1); }},
      {"multinomial", [] { return at::multinomial(at::ones({64}), 64, true); }},
      {"multinomial_without_replacement", [] { return at::multinomial(at::ones({64}), 64); }},
      {"poisson", [] { return at::poisson(at::full({64}, 50.0)); }},
      {"binomial", [] { return at::binomial(at::full({64}, 100.0), at::full({64}, 0.5)); }},
      {"standard_gamma", [] { return at::_standard_gamma(at::ones({64})); }},
      {"sample_dirichlet",
       [] {
         return at::_sample_dirichlet(at::ones({4, 16}));
       }},
      {"rrelu", [] { return at::rrelu(at::full({64}, -1.0), 0.1, 0.9, true); }},
      {"rrelu_",
       [] {
         at::Tensor x = at::full({64}, -1.0);
         return at::rrelu_(x, 0.1, 0.9, true);
       }},
      {"dropout", [] { return at::dropout(at::ones({64}), 0.5, true); }},
      {"dropout_with_grad",
       [] { return at::dropout(at::ones({64}).requires_grad_(), 0.5, true).detach(); }},
      {"dropout_",
       [] {
         at::Tensor x = at::ones({64});
         return at::dropout_(x, 0.5, true);
       }},
      {"native_dropout", [] { return std::get<0>(at::native_dropout(at::ones({64}), 0.5, true)); }},
      {"feature_dropout",
       [] {
         return at::feature_dropout(at::ones({8, 64, 2}), 0.5, true);
       }},
      {"alpha_dropout", [] { return at::alpha_dropout(at::ones({64}), 0.5, true); }},
      {"attention", attend_with_dropout},
      {"nn_dropout", [] { return torch::nn::Dropout(0.5)(at::ones({64})); }},
      {"nn_multihead_attention", multi_head_with_dropout()},
      {"nn_lstm", lstm_with_dropout()},
  };
  return all;
}

class RandomOperator : public testing::TestWithParam<Drawing> {};

TEST_P(RandomOperator, DrawsFromTheScope) {
  const auto& draw = GetParam().draw;
  const at::Tensor before = default_state();
  const at::Tensor first = draw_in_scope(1, draw);
  const at::Tensor second = draw_in_scope(2, draw);
  {
    const RandomScope scope(1);
    EXPECT_TRUE(at::equal(draw(), first));
    EXPECT_FALSE(at::equal(draw(), first)) << "the second draw of a scope is the first again";
  }
  EXPECT_FALSE(at::equal(first, second)) << "the seed does not matter";
  EXPECT_TRUE(at::equal(default_state(), before)) << "the default generator was drawn from";
}

INSTANTIATE_TEST_SUITE_P(All, RandomOperator, testing::ValuesIn(drawings()),
                         [](const auto& each) { return each.param.name; });

TEST(RandomScope, EveryOperatorWithAGeneratorIsCovered) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int with_generator = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.getNamespace() != "aten" || !op) continue;
    for (const c10::Argument& argument : op->schema().arguments()) {
      if (argument.type()->str() != "Generator?") continue;
      ++with_generator;
      EXPECT_TRUE(op->hasKernelForDispatchKey(detail::random_dispatch_key())) << op->schema();
    }
  }
  EXPECT_GE(with_generator, 70);
}

TEST(RandomScope, DrawsAreThoseOfAGeneratorWithTheSeed) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, mix_seed(1, 2, 3, 4)}) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    const RandomScope scope(seed);
    EXPECT_TRUE(at::equal(at::randn({33}), at::randn({33}, generator)));
    EXPECT_TRUE(at::equal(at::randperm(33), at::randperm(33, generator)));
  }
}

TEST(RandomScope, AnOddNumberOfNormalsLeavesNothingForTheNextScope) {
  const auto draw = [] { return at::empty({3}, at::kDouble).normal_(); };
  const at::Tensor first = draw_in_scope(5, draw);
  EXPECT_TRUE(at::equal(draw_in_scope(5, draw), first));
}

TEST(RandomScope, AGivenGeneratorIsUsed) {
  at::Generator mine = at::detail::createCPUGenerator(3);
  at::Generator same = at::detail::createCPUGenerator(3);
  const at::Tensor without_scope = at::rand({8}, same);
  const RandomScope scope(4);
  EXPECT_TRUE(at::equal(at::rand({8}, mine), without_scope));
  EXPECT_TRUE(at::equal(at::rand({8}), at::rand({8}, at::detail::createCPUGenerator(4))));
}

TEST(RandomScope, TheInnermostIsDrawnFromAndTheOuterGoesOn) {
  at::Generator outer = at::detail::createCPUGenerator(1);
  at::Generator inner = at::detail::createCPUGenerator(2);
  const RandomScope scope(1);
  EXPECT_TRUE(at::equal(at::rand({5}), at::rand({5}, outer)));
  for (int i = 0; i < 2; ++i) {
    inner.set_current_seed(2);
    const RandomScope nested(2);
    EXPECT_TRUE(at::equal(at::rand({5}), at::rand({5}, inner)));
    { const RandomScope silent(3); }
    EXPECT_TRUE(at::equal(at::rand({5}), at::rand({5}, inner)));
  }
  EXPECT_TRUE(at::equal(at::rand({5}), at::rand({5}, outer)));
}

TEST(RandomScope, AfterItTheDefaultGeneratorIsDrawnFromAgain) {
  at::manual_seed(11);
  const at::Tensor expected = at::rand({8});
  at::manual_seed(11);
  {
    const RandomScope scope(1);
    at::rand({8});
  }
  EXPECT_TRUE(at::equal(at::rand({8}), expected));
}

TEST(RandomScope, AnExceptionEndsIt) {
  at::manual_seed(11);
  const at::Tensor expected = at::rand({8});
  at::manual_seed(11);
  EXPECT_THROW(
      {
        const RandomScope scope(1);
        at::rand({8});
        throw std::out_of_range("in the scope");
      },
      std::out_of_range);
  EXPECT_ANY_THROW(draw_in_scope(1, [] { return at::empty({8}).bernoulli_(2.0); }));
  EXPECT_TRUE(at::equal(at::rand({8}), expected));
}

TEST(RandomScope, WithoutADrawItLeavesNoTrace) {
  const at::Tensor before = default_state();
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  {
    const RandomScope scope(1);
    EXPECT_EQ(at::ones({4}).sum().item<float>(), 4);
  }
  EXPECT_TRUE(at::equal(default_state(), before));
  EXPECT_EQ(c10::impl::tls_local_dispatch_key_set().included_, keys.included_);
  EXPECT_EQ(c10::impl::tls_local_dispatch_key_set().excluded_, keys.excluded_);
}

TEST(RandomScope, OtherThreadsAreNotAffected) {
  at::manual_seed(11);
  const at::Tensor expected = at::rand({8});
  at::manual_seed(11);
  const RandomScope scope(1);
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = at::rand({8}); }).join();
  EXPECT_TRUE(at::equal(elsewhere, expected));
}

TEST(RandomScope, GradientsGoThroughTheMaskThatWasDrawn) {
  const RandomScope scope(9);
  const at::Tensor x = at::arange(1, 65, at::kFloat).requires_grad_();
  const at::Tensor y = at::dropout(x, 0.25, true);
  y.sum().backward();
  const at::Tensor kept = y.detach() != 0;
  EXPECT_GT(kept.sum().item<int64_t>(), 0);
  EXPECT_LT(kept.sum().item<int64_t>(), 64);
  EXPECT_TRUE(at::equal(x.grad(), at::where(kept, 1 / 0.75F, 0.0F).to(at::kFloat)));
}

TEST(RandomScope, SampledWithGradient) {
  const at::Tensor alpha = at::full({16}, 2.0).requires_grad_();
  const at::Tensor gamma = draw_in_scope(3, [&] { return at::_standard_gamma(alpha); });
  gamma.sum().backward();
  EXPECT_TRUE(alpha.grad().defined());
  const at::Tensor x = at::full({16}, -1.0).requires_grad_();
  const at::Tensor y = draw_in_scope(3, [&] { return at::rrelu(x, 0.1, 0.9, true); });
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), -y.detach()));
}

TEST(RandomScope, WorksWithoutGradientsAndInInferenceMode) {
  const auto draw = [] { return at::dropout(at::ones({64}), 0.5, true); };
  const at::Tensor expected = draw_in_scope(1, draw);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(draw_in_scope(1, draw), expected));
  }
  const c10::InferenceMode inference;
  EXPECT_TRUE(at::equal(draw_in_scope(1, draw), expected));
}

TEST(RandomScope, ADrawInTheBackwardComesFromTheScopeAroundIt) {
  const auto gradient = [] {
    const RandomScope scope(21);
    const at::Tensor x = at::ones({16}).requires_grad_();
    const at::Tensor y = x * 2;
    y.register_hook([](const at::Tensor& grad) { return grad * at::rand({16}); });
    y.sum().backward();
    return x.grad();
  };
  const at::Tensor before = default_state();
  EXPECT_TRUE(at::equal(gradient(), gradient()));
  EXPECT_TRUE(at::equal(default_state(), before));
}

TEST(RandomScope, MetaTensorsAreLeftAlone) {
  const RandomScope scope(1);
  EXPECT_EQ(at::rand({4}, at::kMeta).numel(), 4);
  EXPECT_EQ(at::empty({4}, at::kMeta).normal_().numel(), 4);
  EXPECT_EQ(at::dropout(at::empty({4}, at::kMeta), 0.5, true).numel(), 4);
}

/// Threads that draw from the default generator until told to stop.
class Noise {
 public:
  explicit Noise(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        while (!stop_) at::rand({16});
      });
    }
  }
  ~Noise() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(RandomScope, ThreadsDrawTheSameInEveryRun) {
  const auto rank = [](uint64_t place) {
    at::Tensor x = at::ones({32});
    for (uint64_t microbatch = 0; microbatch < 4; ++microbatch) {
      const RandomScope scope(mix_seed(1, 0, microbatch, place));
      x = at::dropout(x, 0.1, true) + at::randn({32});
    }
    return x;
  };
  std::vector<at::Tensor> expected;
  for (uint64_t place = 0; place < 4; ++place) expected.push_back(rank(place));

  const Noise noise(2);
  for (int run = 0; run < 300; ++run) {
    std::vector<std::future<at::Tensor>> ranks;
    for (uint64_t place = 0; place < 4; ++place) {
      ranks.push_back(std::async(std::launch::async, rank, place));
    }
    for (std::size_t place = 0; place < 4; ++place) {
      ASSERT_TRUE(at::equal(ranks[place].get(), expected[place])) << "run " << run;
    }
  }
}

TEST(RandomScope, ASecondRegistrationIsAClearErrorAndHarmsNothing) {
  const at::Tensor expected = draw_in_scope(1, [] { return at::rand({8}); });
  EXPECT_ERROR(detail::RandomOperators(detail::random_dispatch_key()), Error, "DeferredInit");
  EXPECT_TRUE(at::equal(draw_in_scope(1, [] { return at::rand({8}); }), expected));
}

TEST(RandomScope, AKeyWithKernelsOfOthersIsAClearError) {
  // Stays: tsan takes the dispatcher's lock on the way out for a mistake.
  static const auto* const kernel =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerImpl(
          {"aten::relu", ""}, c10::DispatchKey::TESTING_ONLY_GenericWrapper,
          c10::KernelFunction::makeFallthrough(), std::nullopt, nullptr, "test"));
  ASSERT_NE(kernel, nullptr);
  EXPECT_ERROR(detail::RandomOperators(c10::DispatchKey::TESTING_ONLY_GenericWrapper), Error,
               "aten::relu");
}

// Known answers were computed by a Python program from splitmix64's definition.
TEST(MixSeed, IsFixedForEver) {
  EXPECT_EQ(mix_seed(0, 0, 0, 0), 0x2130748aaac80268);
  EXPECT_EQ(mix_seed(1, 0, 0, 0), 0xe28195ddd9ee4956);
  EXPECT_EQ(mix_seed(0, 1, 0, 0), 0xd1c0270687984b37);
  EXPECT_EQ(mix_seed(0, 0, 1, 0), 0xd9eef7f073d37c42);
  EXPECT_EQ(mix_seed(0, 0, 0, 1), 0x2a4f111b3be57715);
  EXPECT_EQ(mix_seed(1, 2, 3, 4), 0xd55ccd4aeb3ccafb);
  EXPECT_EQ(mix_seed(~0ULL, ~0ULL, ~0ULL, ~0ULL), 0x9c666618c8f279d7);
  EXPECT_EQ(mix_seed(0x0123456789abcdef, 1000000, 511, 0xfedcba9876543210), 0x4ff4f65b9c320355);
}

TEST(MixSeed, DiffersInEveryArgument) {
  std::set<uint64_t> seen;
  std::set<uint32_t> low;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t step = 0; step < 8; ++step) {
      for (uint64_t microbatch = 0; microbatch < 8; ++microbatch) {
        for (uint64_t place = 0; place < 8; ++place) {
          const uint64_t mixed = mix_seed(seed, step, microbatch, place);
          seen.insert(mixed);
          low.insert(static_cast<uint32_t>(mixed));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4096u);
  EXPECT_GE(low.size(), 4090u) << "the CPU's generator uses the low half";
}

}  // namespace
}  // namespace stagecraft
