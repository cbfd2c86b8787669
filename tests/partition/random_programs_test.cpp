#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/partition/pipe.h"
#include "tests/graph/graph_check.h"
#include "tests/partition/pipe_check.h"
#include "tests/partition/random_program.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

/// Outputs, then gradients of inputs and parameters, then what is in buffers.
template <typename Forward>
std::vector<at::Tensor> run(const StageBody& body, const Forward& forward, int64_t rows) {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  generator.set_current_seed(17);
  Args args;
  std::vector<at::Tensor> leaves;
  for (const c10::IValue& value : random_program_inputs(rows).args) {
    leaves.push_back(value.toTensor().clone().requires_grad_());
    args.emplace_back(leaves.back().clone());  // no leaf, so that it may be changed in place
  }
  for (const auto& [name, tensor] : body.buffers) tensor.zero_();
  for (const auto& [name, tensor] : body.parameters) {
    tensor.mutable_grad().reset();
    leaves.push_back(tensor);
  }
  const c10::IValue output = forward(args);
  std::vector<at::Tensor> result;
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> grads;
  for (const c10::IValue& value : output.toTupleRef().elements()) {
    result.push_back(value.toTensor().detach().clone());
    if (!value.toTensor().requires_grad()) continue;
    roots.push_back(value.toTensor());
    grads.push_back(at::ones_like(roots.back()));
  }
  if (!roots.empty()) torch::autograd::backward(roots, grads);
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  for (const auto& [name, tensor] : body.buffers) result.push_back(tensor.clone());
  return result;
}

/// A few places that may be cut.
SplitPositions random_cuts(const Graph& graph, std::mt19937_64& random) {
  const SplitCandidates candidates(graph);
  SplitPositions legal;
  for (std::size_t p = 1; p < candidates.num_nodes(); ++p) {
    if (candidates.is_legal(p)) legal.push_back(p);
  }
  std::ranges::shuffle(legal, random);
  legal.resize(std::min<std::size_t>(legal.size(), 1 + random() % 3));
  std::ranges::sort(legal);
  return legal;
}

uint64_t num_seeds() {
  const char* wanted = std::getenv("SC_RANDOM_PROGRAMS");
  return wanted == nullptr ? 500 : std::strtoull(wanted, nullptr, 10);
}

TEST(RandomPrograms, KeepTheirBitsHoweverTheyAreCut) {
  const uint64_t seeds = num_seeds();
  std::size_t stages = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StageBody body = random_program(seed);
    const Graph graph =
        capture({body.forward, body.parameters, body.buffers}, random_program_inputs(4));
    expect_round_trip(graph);
    std::mt19937_64 random(seed);
    const SplitPositions cuts = random_cuts(graph, random);
    const Pipe pipe(graph, {.policy = [&](const Graph&) { return cuts; }},
                    {.by_default = SharedParameter::kTransmit});
    stages += static_cast<std::size_t>(pipe.num_stages());
    for (const int64_t rows : {4, 7}) {
      const auto expected = run(
          body, [&](const Args& args) { return body.forward(args, {}); }, rows);
      const auto got = run(
          body, [&](const Args& args) { return pipe.run(args); }, rows);
      ASSERT_EQ(difference("value", got, expected), "") << pipe.call_text();
    }
  }
  EXPECT_GT(stages, 2 * seeds);
}

/// The bytes that go over a place, value by value.
int64_t crossing_bytes(const Graph& graph, std::size_t place) {
  const GraphParts& parts = graph.parts();
  IndexedVector<ValueId, bool> is_made(parts.values.size());
  IndexedVector<ValueId, bool> is_read(parts.values.size());
  auto mark = [](IndexedVector<ValueId, bool>& marks) {
    return [&marks](ValueId value) { marks[value] = true; };
  };
  for (std::size_t n = 0; n < parts.nodes.size(); ++n) {
    if (n < place) {
      for (const Argument& result : parts.nodes[n].results) for_each_value(result, mark(is_made));
    } else {
      for (const Argument& each : parts.nodes[n].arguments) for_each_value(each, mark(is_read));
    }
  }
  for (const Argument& output : parts.outputs) for_each_value(output, mark(is_read));
  int64_t bytes = 0;
  for (ValueId v(0); parts.values.contains(v); ++v) {
    if (is_made[v] && is_read[v]) bytes += example_bytes(graph, v);
  }
  return bytes;
}

TEST(RandomPrograms, CountTheBytesThatGoOverEveryPlace) {
  std::size_t places_seen = 0;
  for (uint64_t seed = 0; seed < num_seeds() / 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StageBody body = random_program(seed);
    const Graph graph =
        capture({body.forward, body.parameters, body.buffers}, random_program_inputs(4));
    const SplitCandidates candidates(graph);
    for (std::size_t place = 1; place < candidates.num_nodes(); ++place) {
      ASSERT_EQ(candidates.bytes(place), crossing_bytes(graph, place)) << "place " << place;
      ++places_seen;
    }
  }
  EXPECT_GT(places_seen, num_seeds());
}

TEST(RandomPrograms, TrainInPipelines) {
  const uint64_t seeds = num_seeds() / 10;
  std::size_t ties = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const StageBody body = in_one_tensor(random_program(seed, {.has_buffer = false}));
    const Graph graph = capture({body.forward, body.parameters, {}}, random_program_inputs(4));
    std::mt19937_64 random(seed);
    const SplitPositions cuts = random_cuts(graph, random);
    for (const SharedParameter sharing :
         {SharedParameter::kReplicate, SharedParameter::kTransmit}) {
      const Pipe pipe(graph, {.policy = [&](const Graph&) { return cuts; }},
                      {.by_default = sharing});
      ties += pipe.ties().size();
      // If several stages read a weight or value, its gradients are summed in a different order.
      ASSERT_EQ(train_everywhere(pipe, random_program_inputs, {.uncut_tolerance = 1e-5}), "")
          << pipe.call_text();
    }
  }
  EXPECT_GT(ties, seeds / 4);
}

}  // namespace
}  // namespace stagecraft
