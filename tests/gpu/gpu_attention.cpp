// Times attention in bfloat16 on a CUDA device beside torch's own, in turns: 8 heads of 64, length
// 4096. benchmarks/gpu.py runs it. A number on the command line is the number of rounds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/attention/mask_fns.h"
#include "stagecraft/runtime/launch/graph_device.h"

namespace {

using namespace stagecraft;

constexpr int64_t kHeads = 8;
constexpr int64_t kSize = 64;
constexpr int64_t kLength = 4096;
constexpr int kIterations = 10;
const c10::Device kDevice(c10::kCUDA, 0);

struct Tensors {
  at::Tensor q, k, v, grad;
};

using Attend = std::function<at::Tensor(const Tensors&)>;

Tensors random_tensors(at::ScalarType type) {
  const auto make = [&] {
    return at::randn({1, kHeads, kLength, kSize}, at::TensorOptions(kDevice)).to(type);
  };
  return {make(), make(), make(), make()};
}

// Documents of 300 to 700 tokens, packed.
at::Tensor document_ids() {
  at::Tensor ids = at::arange(kLength);
  int64_t start = 0;
  for (int64_t document = 0; start < kLength; ++document) {
    const int64_t tokens = std::min(kLength - start, 300 + (document * 173) % 401);
    ids.narrow(0, start, tokens).fill_(document);
    start += tokens;
  }
  return ids.to(kDevice);
}

double milliseconds(const std::function<void()>& work) {
  const c10::impl::VirtualGuardImpl impl(kDevice.type());
  const auto stream = impl.getStream(kDevice);
  impl.synchronizeStream(stream);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kIterations; ++i) work();
  impl.synchronizeStream(stream);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kIterations;
}

std::function<void()> forward(const Attend& attend, const Tensors& x) {
  return [=] {
    const at::NoGradGuard no_grad;
    attend(x);
  };
}

std::function<void()> both(const Attend& attend, const Tensors& x) {
  return [=] {
    const Tensors with_grad{x.q.detach().set_requires_grad(true),
                            x.k.detach().set_requires_grad(true),
                            x.v.detach().set_requires_grad(true), x.grad};
    torch::autograd::grad({attend(with_grad)}, {with_grad.q, with_grad.k, with_grad.v}, {x.grad});
  };
}

// The same as one launch. Null if there are no graphs.
std::function<void()> as_graph(stagecraft::detail::GraphDevice* device,
                               const std::function<void()>& work) {
  if (device == nullptr) return {};
  const auto stream = device->enter();
  for (int i = 0; i < 3; ++i) work();
  device->begin_capture();
  work();
  return [graph = std::shared_ptr<stagecraft::detail::DeviceGraph>(device->end_capture())] {
    graph->replay({});
  };
}

void compare(const std::string& what, const std::string& reference, int rounds,
             const std::function<void()>& ours, const std::function<void()>& theirs,
             std::optional<double> goal) {
  if (!ours || !theirs) return;
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 2; ++i) {
    milliseconds(ours);
    milliseconds(theirs);
  }
  for (int round = 0; round < rounds; ++round) {
    a.push_back(milliseconds(ours));
    b.push_back(milliseconds(theirs));
  }
  std::ranges::sort(a);
  std::ranges::sort(b);
  const double mine = a[a.size() / 2];
  const double other = b[b.size() / 2];
  std::printf("  %-44s %8.3f  %-22s %8.3f  ratio %5.2f", what.c_str(), mine, reference.c_str(),
              other, mine / other);
  if (goal) std::printf("  goal %4.2f %s", *goal, mine / other <= *goal ? "met" : "MISSED");
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (!at::globalContext().hasCUDA()) {
    std::printf("gpu_attention: there is no CUDA device; nothing was measured\n");
    return 0;
  }
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const Tensors x = random_tensors(at::kBFloat16);
  const Tensors wide = random_tensors(at::kFloat);
  const MaskFn documents = document_mask(document_ids());
  const MaskFn prefix = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) { return kv.lt(700).logical_or(kv.le(q)); };
  const MaskFn scattered = [](const at::Tensor&, const at::Tensor&, const at::Tensor& q,
                              const at::Tensor& kv) {
    return q.floor_divide(128)
        .add(kv.floor_divide(128))
        .remainder(4)
        .eq(0)
        .logical_and(q.add(kv).remainder(5).ne(0));
  };
  const struct {
    std::string name;
    MaskFn mask;
    std::optional<double> goal;
  } cases[] = {{"causal", causal_mask(), std::nullopt},
               {"documents", documents, 0.5},
               {"causal documents", and_masks({causal_mask(), documents}), std::nullopt},
               {"window of 512", sliding_window_mask(512), std::nullopt},
               {"prefix of 700, then causal", prefix, std::nullopt},
               {"every fourth block, 4 of 5 scores", scattered, std::nullopt}};
  const auto graphs = stagecraft::detail::find_graph_device(kDevice);
  std::printf("attention in bfloat16, %ld heads of %ld, length %ld; milliseconds\n",
              static_cast<long>(kHeads), static_cast<long>(kSize), static_cast<long>(kLength));
  const Attend engine_causal = [](const Tensors& t) {
    return at::scaled_dot_product_attention(t.q, t.k, t.v, {}, 0, /*is_causal=*/true);
  };
  for (const auto& each : cases) {
    const auto mask = create_block_mask(each.mask, 1, 1, kLength, kLength, 128, kDevice);
    const at::Tensor dense = create_mask(each.mask, 1, 1, kLength, kLength, kDevice);
    const Attend ours = [&](const Tensors& t) {
      return flex_attention(t.q, t.k, t.v, {.block_mask = mask});
    };
    const Attend theirs = [&](const Tensors& t) {
      return at::scaled_dot_product_attention(t.q, t.k, t.v, dense);
    };
    compare(each.name + ", forward", "dense mask", rounds, forward(ours, x), forward(theirs, x),
            std::nullopt);
    compare(each.name + ", both", "dense mask", rounds, both(ours, x), both(theirs, x), each.goal);
    compare(each.name + ", both, as graphs", "dense mask", rounds,
            as_graph(graphs.get(), both(ours, x)), as_graph(graphs.get(), both(theirs, x)),
            each.goal);
    if (each.name == "causal") {
      compare("causal, forward", "torch's causal", rounds, forward(ours, x),
              forward(engine_causal, x), 1.1);
      compare("causal, both", "torch's causal", rounds, both(ours, x), both(engine_causal, x), 1.1);
    }
    if (each.name == "documents") {
      compare("documents, both", "ours in float32", rounds, both(ours, x), both(ours, wide),
              std::nullopt);
    }
  }
  return 0;
}
