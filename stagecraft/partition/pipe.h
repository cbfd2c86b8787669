#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/partition/split.h"
#include "stagecraft/partition/stage_plan.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// What a stage of a Pipe holds and does, at the sizes of the example.
struct StageSummary {
  std::string name;  ///< submod_pp_0, ...
  std::size_t operators = 0;
  int64_t parameters = 0;  ///< elements
  int64_t parameter_bytes = 0;
  int64_t flops = 0;       ///< of a forward
  int64_t bytes_sent = 0;  ///< of a microbatch, forward, to all later stages
};

/// A model as a pipeline of stages that read each other's values.
///
///   Pipe pipe = pipeline(model, {{x}, {}}, {.policy = equal_cost(4)});
///   Pipeline run(pipe, {.schedule = "1F1B"});
///
/// The stages hold the model's own parameters, but for copies of shared ones: what trains the
/// pipeline has to train parameters(). Immutable; a copy shares.
class Pipe {
 public:
  /// Throws as find_cuts and plan_stages do.
  explicit Pipe(Graph graph, const Split& split = {}, const Sharing& sharing = {});
  /// One that was cut before.
  static Pipe of_plan(Graph graph, PipePlan plan);

  int32_t num_stages() const { return static_cast<int32_t>(plan_->stages.size()); }
  /// The whole model.
  const Graph& graph() const { return graph_; }
  /// One stage. ArgumentError for one that is not there.
  const Graph& stage_graph(StageId stage) const { return plan(stage).graph; }
  static std::string stage_name(StageId stage) {
    return "submod_pp_" + std::to_string(stage.value());
  }
  const PipePlan& plan() const { return *plan_; }

  /// What a Pipeline or Runner of the stages needs.
  const Ports& ports() const { return *ports_; }
  const std::vector<TiedWeight>& ties() const { return plan_->ties; }
  /// On the device where the stage's tensors are; on another, with copies of them there. To train
  /// those, move the pipe: to(device).
  Stage build_stage(StageId stage, std::optional<c10::Device> device = std::nullopt) const;
  std::vector<Stage> build_stages(std::optional<c10::Device> device = std::nullopt) const;
  /// The same pipe on another device: every tensor that is not there is copied, once.
  Pipe to(c10::Device device) const;

  /// All that is trained, stage by stage. A tensor comes once, each copy of a shared one too.
  std::vector<at::Tensor> parameters() const;

  /// Runs the stages one after another on this thread; gradients flow through all of them. The bits
  /// of the model. `draw`: what StageContext::draw is in a pipeline.
  c10::IValue run(const Args& args, const Kwargs& kwargs = {},
                  std::optional<uint64_t> draw = std::nullopt) const;

  /// Throws MetadataError unless the model takes them, as GraphProgram::run does.
  void check_arguments(const Args& args, const Kwargs& kwargs) const;
  /// The arguments of one stage, given those of the model and the outputs of earlier stages.
  /// MetadataError for arguments that are missing.
  Arguments arguments_of(StageId stage, const Args& args, const Kwargs& kwargs,
                         const std::vector<std::vector<c10::IValue>>& outputs) const;

  std::vector<StageSummary> summary() const;
  /// The summary as a table.
  std::string table() const;
  /// How the stages are called, one line each:
  ///
  ///   %submod_pp_0.0, %submod_pp_0.1 = submod_pp_0(args[0], mask=kwargs["mask"])
  ///   return submod_pp_1(%submod_pp_0.1, %submod_pp_0.0)
  std::string call_text() const;

 private:
  struct Planned {};
  Pipe(Planned, Graph graph, PipePlan plan);
  const StagePlan& plan(StageId stage) const;

  Graph graph_;
  std::shared_ptr<const PipePlan> plan_;
  std::shared_ptr<const Ports> ports_;
};

/// Options of pipeline().
struct PipeOptions {
  CaptureOptions capture = {};
  Sharing sharing = {};
};

/// Captures a model and cuts it. `example` is one microbatch. Throws as capture and Pipe do.
Pipe pipeline(const StageBody& model, const Arguments& example, const Split& split = {},
              const PipeOptions& options = {});

/// The same for anything that stage_body takes; `names` are those of forward's parameters.
template <detail::ModulePointer M>
Pipe pipeline(M model, const Arguments& example, const Split& split = {},
              const PipeOptions& options = {}, std::vector<std::string> names = {}) {
  return pipeline(stage_body(std::move(model), std::move(names)), example, split, options);
}

/// How a graph draws random numbers that depend on `draw` and on the name of each operator, and so
/// not on where the graph is cut.
RunOptions draw_by_name(uint64_t draw);

/// The body of a stage that runs a graph. In a pipeline random operators draw by name.
StageBody stage_body(const Graph& graph);

}  // namespace stagecraft
