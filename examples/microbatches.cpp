// Splits a batch of arguments, including a block mask, into microbatches, runs attention on each,
// and merges the outputs. Then compares outputs and gradients with those of the whole batch.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include "stagecraft/stagecraft.h"

namespace {

using namespace stagecraft;

constexpr int64_t kBatch = 6;
constexpr int64_t kLength = 256;
constexpr int64_t kChunks = 4;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
}

// Member b of the batch has documents of 32 * (b + 1) tokens, one after the other.
c10::intrusive_ptr<BlockMask> packed_documents() {
  const auto ids =
      at::arange(kLength).unsqueeze(0).floor_divide(at::arange(1, kBatch + 1).mul(32).unsqueeze(1));
  return create_block_mask(and_masks({causal_mask(), document_mask(ids)}), kBatch, 1, kLength,
                           kLength, 16);
}

at::Tensor attend(const Arguments& call) {
  const auto batch = call.args[0].toGenericDict();
  return flex_attention(batch.at("q").toTensor(), batch.at("k").toTensor(),
                        batch.at("v").toTensor(),
                        {.block_mask = find_opaque<BlockMask>(call.kwargs.get("mask"))});
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}

void run() {
  at::manual_seed(1);
  const auto q = at::randn({kBatch, 2, kLength, 32}).set_requires_grad(true);
  const auto k = at::randn({kBatch, 2, kLength, 32}).set_requires_grad(true);
  const auto v = at::randn({kBatch, 2, kLength, 32}).set_requires_grad(true);
  const auto mask = packed_documents();
  const Args args = {tree::dict({{"q", q}, {"k", k}, {"v", v}})};
  const Kwargs kwargs = {{"mask", make_opaque(mask)}, {"step", 7}};

  say("The batch:");
  say("  args[0]        = " + describe(args[0]));
  say("  kwargs[mask]   = " + mask->describe());
  say("\nMember 2 of the block mask (causal within packed documents):\n");
  say(to_text(*split_block_mask(mask, kBatch)[2]));

  const auto microbatches = split_args_kwargs_into_chunks(args, kwargs, kChunks);
  say("Split into " + std::to_string(microbatches.size()) + " microbatches:");
  std::vector<c10::IValue> outputs;
  for (const auto& call : microbatches) {
    const auto out = attend(call);
    out.sum().backward();
    outputs.emplace_back(out.detach());
    say("  " + describe(call.args[0].toGenericDict().at("q")) + ", " +
        describe(call.kwargs.get("mask")) + " -> " + describe(out.detach()));
  }
  const auto merged = merge_chunks(outputs).toTensor();
  const auto grads = std::vector<at::Tensor>{q.grad().clone(), k.grad().clone(), v.grad().clone()};

  for (const auto& leaf : {q, k, v}) leaf.mutable_grad().reset();
  const auto whole = attend({args, kwargs});
  whole.sum().backward();
  double grad_difference = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& leaf = i == 0 ? q : i == 1 ? k : v;
    grad_difference = std::max(grad_difference, largest_difference(grads[i], leaf.grad()));
  }
  const double output_difference = largest_difference(merged, whole.detach());
  std::printf("\nMicrobatches against the whole batch: output differs by %g, gradients by %g\n",
              output_difference, grad_difference);
  if (output_difference > 1e-5 || grad_difference > 1e-5) {
    throw Error("microbatches and the whole batch should agree");
  }
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "microbatches: %s\n", error.what());
    return 1;
  }
}
