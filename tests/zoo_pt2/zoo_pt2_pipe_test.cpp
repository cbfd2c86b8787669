#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/roll.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/partition/split_candidates.h"
#include "stagecraft/train/state_dict.h"
#include "stagecraft/train/state_file.h"
#include "stagecraft/train/trainer.h"
#include "stagecraft/tree/tree.h"
#include "tests/partition/pipe_check.h"
#include "tests/support/pipeline_check.h"
#include "tests/zoo_pt2/zoo.h"

namespace stagecraft {
namespace {

const Sharing kTransmit = {.by_default = SharedParameter::kTransmit};

Split at_places(SplitPositions cuts) {
  return {.policy = [cuts](const Graph&) { return cuts; }};
}

void clear_grads(const Graph& graph) {
  for (const GraphState& state : graph.parts().states) state.tensor.mutable_grad().reset();
}

std::vector<ZooEntry> entries(const std::string& kind) {
  std::vector<ZooEntry> zoo = read_zoo();
  std::erase_if(zoo, [&](const ZooEntry& entry) { return entry.kind != kind; });
  return zoo;
}

// Forward and backward through both stages, against Python.
TEST(ZooPt2Pipe, EveryLegalCutGivesTheSameBits) {
  int models = 0;
  for (const ZooEntry& entry : entries("model")) {
    if (entry.name != "gpt2" && entry.name != "llama_tied" && entry.name != "t5") continue;
    const oracle::Case one = oracle::read_case_file(zoo_path(entry.name + ".cases.pt")).back();
    const Graph graph = load_exported(zoo_path(entry.name + ".pt2"));
    const SplitCandidates candidates(graph);
    std::size_t tried = 0;
    for (std::size_t place = 1; place < candidates.num_nodes(); ++place) {
      if (!candidates.is_legal(place)) continue;
      const Pipe pipe(graph, at_places({place}), kTransmit);
      clear_grads(graph);
      ASSERT_EQ(compare_with_case(graph, one,
                                  [&](const Arguments& arguments) {
                                    return pipe.run(arguments.args, arguments.kwargs);
                                  }),
                "")
          << entry.name << " before " << graph.parts().nodes[place].name;
      ++tried;
    }
    std::cout << entry.name << ": " << tried << " cuts of " << candidates.num_nodes() - 1
              << " places\n";
    EXPECT_GT(tried, candidates.num_nodes() / 2) << entry.name;
    ++models;
  }
  EXPECT_TRUE(models == 3 || std::getenv("SC_ZOO_ONLY") != nullptr) << models;
}

/// The loss among the outputs, or the mean of the squares of all that have gradients.
Loss loss_of(const ZooEntry& entry) {
  return Loss([loss = entry.loss](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
    const std::vector<c10::IValue> leaves = tree::flatten(output).leaves;
    if (loss) return leaves.at(*loss);
    at::Tensor sum;
    for (const c10::IValue& leaf : leaves) {
      if (!leaf.isTensor() || !leaf.toTensor().requires_grad()) continue;
      const at::Tensor& tensor = leaf.toTensor();
      const at::Tensor square =
          tensor.is_complex() ? tensor.abs().pow(2).mean() : tensor.pow(2).mean();
      sum = sum.defined() ? sum + square.to(at::kFloat) : square.to(at::kFloat);
    }
    return c10::IValue(sum);
  });
}

/// Four times the rows of a case, no two parts the same.
Arguments larger(const Arguments& arguments) {
  auto repeat = [](const c10::IValue& value) {
    return tree::map(value, [](const c10::IValue& leaf) -> c10::IValue {
      if (!leaf.isTensor() || leaf.toTensor().dim() == 0) return leaf;
      const at::Tensor& tensor = leaf.toTensor();
      const int64_t last = tensor.dim() - 1;
      return at::cat({tensor, at::roll(tensor, 1, last), at::roll(tensor, 2, last),
                      at::roll(tensor, 3, last)});
    });
  };
  Arguments result;
  for (const c10::IValue& value : arguments.args) result.args.push_back(repeat(value));
  for (const auto& [name, value] : arguments.kwargs) result.kwargs.set(name, repeat(value));
  return result;
}

struct Cut {
  int32_t stages;
  int32_t ranks;
  std::string schedule;
};
const std::vector<Cut> kCuts = {
    {2, 2, "1F1B"}, {2, 1, "ZBVZeroBubble"}, {4, 4, "1F1B"}, {4, 2, "ZBVZeroBubble"}};

struct Curve {
  std::vector<double> losses;
  Pipe pipe;
};

// Trained from the archive, whose tensors are its own in each run.
Curve train(const ZooEntry& entry, const Cut& cut, const Arguments& batch) {
  const Pipe pipe(load_exported(zoo_path(entry.name + ".pt2")), {.policy = equal_cost(cut.stages)},
                  kTransmit);
  Trainer trainer(pipe, loss_of(entry),
                  {.schedule = cut.schedule, .ranks = cut.ranks, .seed = 5, .microbatches = 4});
  Curve curve{{}, pipe};
  for (int i = 0; i < 4; ++i) {
    // Python's targets are among the arguments.
    curve.losses.push_back(trainer.step(batch, c10::IValue()).loss);
  }
  return curve;
}

void write_outputs(const Graph& graph, const oracle::Case& one, const std::string& path) {
  const Arguments arguments = arguments_of(one);
  at::manual_seed(static_cast<uint64_t>(one.integer("seed")));
  const c10::IValue output = GraphProgram(graph).run(arguments.args, arguments.kwargs);
  NamedTensors leaves;
  for (const c10::IValue& leaf : tree::flatten(output).leaves) {
    leaves.emplace_back(std::to_string(leaves.size()), leaf.toTensor().detach());
  }
  detail::write_tensor_file(path, leaves);
}

// check_trained.py then compares what Python makes of the weights.
TEST(ZooPt2Pipe, TrainsAlikeHoweverItIsCut) {
  for (const ZooEntry& entry : entries("model")) {
    const oracle::Case one = oracle::read_case_file(zoo_path(entry.name + ".cases.pt")).front();
    const Arguments batch = larger(arguments_of(one));
    const Curve uncut = train(entry, {1, 1, "1F1B"}, batch);
    EXPECT_LT(uncut.losses.back(), uncut.losses.front()) << entry.name;
    for (const Cut& cut : kCuts) {
      const Curve curve = train(entry, cut, batch);
      // Several stages read the encoder's output, and their gradients are added in a different
      // grouping.
      const double tolerance = entry.name == "t5" && cut.stages == 4 ? 1e-5 : 0;
      for (std::size_t i = 0; i < uncut.losses.size(); ++i) {
        EXPECT_NEAR(curve.losses[i], uncut.losses[i], tolerance)
            << entry.name << " in " << cut.stages << " stages, " << cut.schedule << ", step " << i;
      }
      if (cut.stages != 4) continue;
      save_state_dict(curve.pipe, zoo_path(entry.name + ".trained.pt"));
      write_outputs(curve.pipe.graph(), one, zoo_path(entry.name + ".trained_outputs.pt"));
    }
  }
}

/// A pipe with this number of stages; nothing if there are too few candidates.
std::optional<Pipe> cut_feature(const ZooEntry& entry, int32_t stages) {
  try {
    return Pipe(load_exported(zoo_path(entry.name + ".pt2")), {.policy = equal_operators(stages)},
                kTransmit);
  } catch (const ArgumentError&) {
    return std::nullopt;
  }
}

// Every feature that can be cut, with every shape of its cases in one step: bit for bit the cut
// loop, and plain autograd of the uncut graph up to the grouping of sums.
TEST(ZooPt2Pipe, FeaturesTrainAsUncut) {
  std::size_t runs = 0;
  for (const ZooEntry& entry : entries("feature")) {
    // What it gives depends on how often it ran.
    if (entry.name == "buffer_update" || entry.name == "out_argument") continue;
    // Sums of gradients in bfloat16.
    const double tolerance = entry.name == "autocast" ? 1e-2 : 1e-6;
    const std::vector<oracle::Case> cases =
        oracle::read_case_file(zoo_path(entry.name + ".cases.pt"));
    auto make_batch = [&] {
      Microbatches batch;
      for (std::size_t i = 0; i < 4; ++i) {
        batch.inputs.push_back(arguments_of(cases[i % cases.size()]));
      }
      return batch;
    };
    for (const int32_t stages : {2, 4}) {
      const std::optional<Pipe> pipe = cut_feature(entry, stages);
      if (!pipe) continue;
      TestModel model = test_model(*pipe);
      model.loss = loss_of(entry);
      for (const int32_t stages_per_rank : {1, 2}) {
        const std::string schedule = stages_per_rank == 1 ? "1F1B" : "ZBVZeroBubble";
        PipelineCheck check(
            model, ScheduleSource::named(schedule, stages / stages_per_rank, stages_per_rank),
            {.uncut_tolerance = tolerance});
        EXPECT_EQ(check.step(make_batch), "")
            << entry.name << " in " << stages << " stages, " << schedule;
        ++runs;
      }
    }
  }
  std::cout << runs << " runs\n";
  EXPECT_GT(runs, 200U);
}

}  // namespace
}  // namespace stagecraft
