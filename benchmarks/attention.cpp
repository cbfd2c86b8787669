// Attention at length 4096 with a causal and with a document mask, against dense masked
// scaled_dot_product_attention.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "benchmarks/harness.h"
#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/attention/mask_fns.h"

namespace {

using namespace stagecraft;

constexpr int64_t kHeads = 8;
constexpr int64_t kSize = 64;

struct Inputs {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

Inputs random_inputs(int64_t length) {
  const auto make = [&] { return at::randn({1, kHeads, length, kSize}); };
  return {make(), make(), make()};
}

// Packed documents of 300 to 700 tokens: about eight in a sequence.
at::Tensor document_ids(int64_t length) {
  at::Tensor ids = at::arange(length);
  int64_t start = 0;
  for (int64_t document = 0; start < length; ++document) {
    const int64_t tokens = std::min(length - start, 300 + (document * 173) % 401);
    ids.narrow(0, start, tokens).fill_(document);
    start += tokens;
  }
  return ids;
}

void forward_and_backward(const Inputs& in,
                          const std::function<at::Tensor(const Inputs&)>& attend) {
  const Inputs with_grad = {in.q.detach().set_requires_grad(true),
                            in.k.detach().set_requires_grad(true),
                            in.v.detach().set_requires_grad(true)};
  const at::Tensor out = attend(with_grad);
  out.backward(at::ones_like(out));
  benchmark::DoNotOptimize(with_grad.q.grad());
}

void compare(bench::Suite& suite, const std::string& name, const MaskFn& mask_fn, int64_t length,
             double goal) {
  const Inputs in = random_inputs(length);
  const auto block_mask = create_block_mask(mask_fn, 1, 1, length, length);
  const at::Tensor dense = create_mask(mask_fn, 1, 1, length, length);
  const auto ours = [&](const Inputs& x) {
    return flex_attention(x.q, x.k, x.v, {.block_mask = block_mask});
  };
  const auto theirs = [&](const Inputs& x) {
    return at::scaled_dot_product_attention(x.q, x.k, x.v, dense);
  };
  const auto forward = [&](const auto& attend) {
    return bench::timed([&] {
      const at::NoGradGuard no_grad;
      benchmark::DoNotOptimize(attend(in));
    });
  };
  const auto both = [&](const auto& attend) {
    return bench::timed([&] { forward_and_backward(in, attend); });
  };
  suite.compare(fmt::format("{}, forward", name), forward(ours),
                {{"dense SDPA", forward(theirs), goal}});
  suite.compare(fmt::format("{}, forward + backward", name), both(ours),
                {{"dense SDPA", both(theirs), goal}});
}

void measure(bench::Suite& suite) {
  const int64_t length = suite.quick() ? 256 : 4096;
  compare(suite, "causal", causal_mask(), length, 0.77);
  compare(suite, "documents", document_mask(document_ids(length)), length, 0.33);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("attention", argc, argv, measure);
}
