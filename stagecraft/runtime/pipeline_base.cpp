#include "stagecraft/runtime/pipeline_base.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/step_driver.h"

namespace stagecraft {

namespace {

Stage& get_stage(const PipelineCore& core, StageId stage) {
  for (const auto& driver : core.drivers()) {
    if (Stage* const found = driver->find_stage(stage)) return *found;
  }
  core.placement().get_rank(stage);  // throws if there is no such stage
  throw ArgumentError(fmt::format("stage {} is not on rank {}", stage.value(),
                                  core.drivers().front()->place().self.value()));
}

}  // namespace

PipelineBase::PipelineBase(std::unique_ptr<PipelineCore> core) : core_(std::move(core)) {}
PipelineBase::~PipelineBase() = default;
PipelineBase::PipelineBase(PipelineBase&&) noexcept = default;
PipelineBase& PipelineBase::operator=(PipelineBase&&) noexcept = default;

StepResult PipelineBase::step(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                              const StepOptions& options) {
  return core_->run([&] { return split_batch(args, kwargs, target, options); }, options, true);
}

StepResult PipelineBase::step(Microbatches batch, const StepOptions& options) {
  return core_->run([&] { return complete_batch(std::move(batch), options); }, options, true);
}

StepResult PipelineBase::eval(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                              const StepOptions& options) {
  return core_->run([&] { return split_batch(args, kwargs, target, options); }, options, false);
}

StepResult PipelineBase::eval(Microbatches batch, const StepOptions& options) {
  return core_->run([&] { return complete_batch(std::move(batch), options); }, options, false);
}

uint64_t PipelineBase::completed_steps() const {
  return core_->counter.completed();
}

void PipelineBase::set_completed_steps(uint64_t steps) {
  core_->counter.set_completed(steps);
}

const Placement& PipelineBase::placement() const {
  return core_->placement();
}

int32_t PipelineBase::num_ranks() const {
  return placement().num_ranks();
}

int32_t PipelineBase::num_stages() const {
  return placement().num_stages();
}

Stage& PipelineBase::stage(StageId stage) {
  return get_stage(*core_, stage);
}

const Stage& PipelineBase::stage(StageId stage) const {
  return get_stage(*core_, stage);
}

const std::string& PipelineBase::schedule_name() const {
  return core_->source.name();
}

std::vector<at::Tensor> PipelineBase::parameters() const {
  std::vector<at::Tensor> all;
  for (StageId s(0); s.value() < num_stages(); ++s) {
    for (const auto& driver : core_->drivers()) {
      const Stage* const stage = driver->find_stage(s);
      if (stage == nullptr) continue;
      for (const auto& entry : stage->parameters()) {
        const bool is_known = std::ranges::any_of(
            all, [&](const at::Tensor& other) { return other.is_same(entry.second); });
        if (!is_known) all.push_back(entry.second);
      }
    }
  }
  return all;
}

Callbacks& PipelineBase::callbacks() {
  return core_->callbacks;
}

LaunchCounts PipelineBase::launches() const {
  return core_->launches();
}

RecordedRun PipelineBase::recorded_run() const {
  return core_->recorded_run();
}

Recording PipelineBase::recording() const {
  return recorded_run().recording;
}

StepReport PipelineBase::report() const {
  return make_report(recording());
}

MemoryEstimate PipelineBase::peak_memory_estimate(int32_t microbatches) const {
  const std::vector<StageMemory> memory =
      core_->schedule == nullptr ? std::vector<StageMemory>() : recorded_run().memory;
  require<ArgumentError>(!memory.empty(),
                         "a memory estimate needs a step with StepOptions::measure_memory first");
  return estimate_memory(*core_->source.training(microbatches, core_->graph), memory);
}

void PipelineBase::recover() {
  core_->recover();
}

const std::shared_ptr<ParameterShards>& PipelineBase::shards() const {
  return core_->drivers().front()->shards();
}

void PipelineBase::gather_weights() {
  core_->gather_weights();
}

void PipelineBase::with_whole_parameters(const std::function<void()>& body) {
  core_->with_whole_parameters(body);
}

MeasuredLookahead PipelineBase::fit_unshard_lookahead() {
  return core_->fit_unshard_lookahead();
}

void PipelineBase::set_unshard_lookahead(const std::vector<int32_t>& lookahead) {
  core_->set_unshard_lookahead(lookahead);
}

int32_t PipelineBase::replica() const {
  return core_->drivers().front()->place().replica();
}

}  // namespace stagecraft
