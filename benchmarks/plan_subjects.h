#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "stagecraft/partition/split.h"
#include "stagecraft/runtime/measured_plan.h"

namespace stagecraft::bench {

/// A model to plan, and the same model with any split.
struct PlanSubject {
  std::string name;
  ModelToPlan model;
  std::function<Pipe(const Split& split)> cut;
};

/// The model of an archive that exported_pytorch.py wrote: rows of 64 tokens, two a microbatch.
PlanSubject exported_subject(const std::string& name, const std::string& path, int64_t tokens,
                             int32_t microbatches);

/// A GPT of the trainer, one of whose blocks is four times as wide.
PlanSubject wide_gpt_subject(bool is_small, int32_t microbatches);

/// The problem of a subject on ranks that are alike.
PlanProblem problem_for(int32_t ranks, int32_t microbatches);

/// The first layers of stages with equal numbers of layers.
std::vector<int32_t> equal_layers(const PlanSubject& subject, int32_t stages);
/// The model, split before these layers.
Pipe cut_at(const PlanSubject& subject, const std::vector<int32_t>& begins);

}  // namespace stagecraft::bench
