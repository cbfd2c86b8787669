#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// The size and cost of a stage of a Pipe, at the sizes of the example.
struct StageSummary {
  std::string name;  ///< submod_pp_0, ...
  std::size_t operators = 0;
  int64_t parameters = 0;  ///< elements
  int64_t parameter_bytes = 0;
  int64_t flops = 0;       ///< FLOP of a forward
  int64_t bytes_sent = 0;  ///< by the forward of a microbatch, to all later stages
};

/// Makes the bodies of a pipe's stages, for stages that do not run their graphs operator by
/// operator. May be called on several threads at the same time.
class StageBodies {
 public:
  virtual ~StageBodies() = default;
  /// The body of a stage. Its parameters and buffers are the tensors of `graph`, which are on the
  /// device where the stage computes.
  virtual StageBody body(StageId stage, const Graph& graph) const = 0;
  /// Throws MetadataError for sizes of the model's inputs that the bodies do not take. `model` is
  /// the graph of the whole model; `sizes` has a value for each of its sizes, or 0.
  virtual void check_sizes(const Graph& model, std::span<const int64_t> sizes) const = 0;
};

/// A model as a pipeline of stages that read each other's values.
///
///   Pipe pipe = pipeline(model, {{x}, {}}, {.policy = equal_cost(4)});
///   Pipeline run(pipe, {.schedule = "1F1B"});
///
/// The stages hold the model's own parameters, except for copies of shared parameters. An optimizer
/// must therefore train the tensors of Pipe::parameters(). Immutable; copies share their data.
class Pipe {
 public:
  /// Throws what find_split_positions and plan_stages throw.
  explicit Pipe(const Graph& graph, const Split& split = {}, const Sharing& sharing = {});
  /// A pipe from a plan that was made before.
  static Pipe of_plan(Graph graph, PipePlan plan);

  int32_t num_stages() const { return static_cast<int32_t>(plan_->stages.size()); }
  /// The whole model.
  const Graph& graph() const { return graph_; }
  /// The graph of one stage. ArgumentError for a stage that does not exist.
  const Graph& stage_graph(StageId stage) const { return plan(stage).graph; }
  static std::string stage_name(StageId stage) {
    return "submod_pp_" + std::to_string(stage.value());
  }
  const PipePlan& plan() const { return *plan_; }

  /// The connections and tied weights that a Pipeline or Runner of the stages needs.
  const Ports& ports() const { return *ports_; }
  const std::vector<TiedWeight>& ties() const { return plan_->ties; }
  /// Builds a stage. Without a device, the stage uses its tensors where they are. With a device, it
  /// uses copies on that device. To train on a device, move the pipe with to(device).
  Stage build_stage(StageId stage, std::optional<c10::Device> device = std::nullopt) const;
  /// Builds a stage with options. The device in `options` is replaced by that of the stage's
  /// tensors.
  Stage build_stage(StageId stage, StageOptions options) const;
  std::vector<Stage> build_stages(std::optional<c10::Device> device = std::nullopt) const;
  /// The same pipe, whose stages are built from other bodies. run() still runs the graphs.
  Pipe with_bodies(std::shared_ptr<const StageBodies> bodies) const;

  /// The same pipe on a device. Every tensor that is on a different device is copied once.
  Pipe to(c10::Device device) const;
  /// The same for several pipes. Tensors that they share are moved once and stay shared: a model
  /// for training and the same model for evaluation.
  static std::vector<Pipe> to(const std::vector<Pipe>& pipes, c10::Device device);

  /// All trained tensors, stage by stage, each once. Copies of a shared parameter are tensors of
  /// their own.
  std::vector<at::Tensor> parameters() const;

  /// Runs the stages in order on this thread. Gradients flow through all of them. The result is
  /// bitwise equal to that of the model. `draw` is StageContext::draw of a pipeline.
  c10::IValue run(const Args& args, const Kwargs& kwargs = {},
                  std::optional<uint64_t> draw = std::nullopt) const;

  /// Throws MetadataError, like GraphProgram::run, if the model does not take the arguments.
  void check_arguments(const Args& args, const Kwargs& kwargs) const;
  /// Whether there are conditions on arguments that the first stage alone may not find violated.
  bool has_guards() const { return bodies_ != nullptr || !graph_.parts().guards.empty(); }
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
  StageBody body_of(StageId stage, const Graph& graph) const;

  Graph graph_;
  std::shared_ptr<const PipePlan> plan_;
  std::shared_ptr<const Ports> ports_;
  std::shared_ptr<const StageBodies> bodies_;  // null: run the graphs
};

/// Options of pipeline().
struct PipeOptions {
  CaptureOptions capture = {};
  Sharing sharing = {};
};

/// Captures a model and splits it. `example` is one microbatch. Throws what capture and Pipe throw.
Pipe pipeline(const StageBody& model, const Arguments& example, const Split& split = {},
              const PipeOptions& options = {});

/// The same for anything that stage_body takes. `names` are the names of forward's parameters.
template <detail::ModulePointer M>
Pipe pipeline(M model, const Arguments& example, const Split& split = {},
              const PipeOptions& options = {}, std::vector<std::string> names = {}) {
  return pipeline(stage_body(std::move(model), std::move(names)), example, split, options);
}

/// Makes random numbers depend on `draw` and on the name of each operator, and therefore not on the
/// split.
RunOptions draw_by_name(uint64_t draw);

/// The number of an operator's name in the derivation of its seed: RandomScope(draw, place). It
/// never changes: saved runs rely on it.
uint64_t random_place(std::string_view name);

/// The body of a stage that runs a graph. In a pipeline it runs with draw_by_name.
StageBody stage_body(const Graph& graph);

}  // namespace stagecraft
