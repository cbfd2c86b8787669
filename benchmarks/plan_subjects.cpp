#include "benchmarks/plan_subjects.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>

#include "cli/train/gpt.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::bench {
namespace {

constexpr int64_t kPlanRows = 2;
constexpr int64_t kPlanLength = 64;

Loss plan_loss() {
  return Loss([](const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
    const at::Tensor logits = tree::flatten(output).leaves.at(0).toTensor();
    return c10::IValue(at::cross_entropy_loss(logits.flatten(0, 1), target.toTensor().flatten()));
  });
}

Microbatches random_rows(int64_t tokens, int32_t microbatches, bool by_name) {
  Microbatches batch;
  for (int32_t m = 0; m < microbatches; ++m) {
    const at::Tensor ids = at::randint(0, tokens, {kPlanRows, kPlanLength}, at::kLong);
    Arguments arguments;
    if (by_name) {
      arguments.kwargs = {{"input_ids", ids}};
    } else {
      arguments.args = {ids};
    }
    batch.inputs.push_back(std::move(arguments));
    batch.targets.emplace_back(at::randint(0, tokens, {kPlanRows, kPlanLength}, at::kLong));
    batch.weights.push_back(1.0 / microbatches);
  }
  return batch;
}

Split split_at(const std::vector<std::string>& names) {
  Split split;
  for (const std::string& name : names) split.points.emplace_back(name, SplitPoint::kBeginning);
  if (names.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
  return split;
}

void complete(PlanSubject& subject) {
  subject.model.split = [cut = subject.cut](const std::vector<std::string>& names) {
    return cut(split_at(names));
  };
  subject.model.layers = layer_names(subject.model.split({}).graph());
  subject.model.loss = plan_loss();
}

}  // namespace

PlanSubject exported_subject(const std::string& name, const std::string& path, int64_t tokens,
                             int32_t microbatches) {
  PlanSubject subject;
  subject.name = name;
  subject.cut = [graph = load_exported(path)](const Split& split) {
    return Pipe(graph, split, {.by_default = SharedParameter::kTransmit});
  };
  complete(subject);
  subject.model.batch = random_rows(tokens, microbatches, true);
  return subject;
}

PlanSubject wide_gpt_subject(bool is_small, int32_t microbatches) {
  PlanSubject subject;
  subject.name = "GPT with a wide block";
  const GptSizes sizes{.layers = is_small ? 4 : 8,
                       .width = is_small ? 32 : 256,
                       .heads = 4,
                       .context = kPlanLength,
                       .wide_block = 1};
  subject.cut = [gpt = std::make_shared<Gpt>(sizes, 1)](const Split& split) {
    return gpt->cut(split, {.max_rows = 8});
  };
  complete(subject);
  subject.model.batch = random_rows(sizes.vocabulary, microbatches, false);
  return subject;
}

PlanProblem problem_for(int32_t ranks, int32_t microbatches) {
  PlanProblem problem;
  problem.ranks = same_ranks(ranks);
  problem.microbatches = microbatches;
  problem.input_gradient = false;
  problem.units = {"ms", true};
  return problem;
}

std::vector<int32_t> equal_layers(const PlanSubject& subject, int32_t stages) {
  return equal_parts(static_cast<int32_t>(subject.model.layers.size()) + 1, stages);
}

Pipe cut_at(const PlanSubject& subject, const std::vector<int32_t>& begins) {
  std::vector<std::string> names;
  for (std::size_t s = 1; s < begins.size(); ++s) {
    names.push_back(subject.model.layers[static_cast<std::size_t>(begins[s]) - 1]);
  }
  return subject.model.split(names);
}

}  // namespace stagecraft::bench
