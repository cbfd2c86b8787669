#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/runtime/argument_builder.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/step_transfers.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/memory_meter.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Carries values and gradients between the stages of one rank and those of others, for one step at
/// a time:
///
///   F   take_inputs -> stage -> put_outputs
///   B   take_output_grads -> stage -> put_input_grads
///
/// Values and gradients reach stages of the same rank directly, and stages of other ranks by SEND_F
/// and SEND_B. Each is released at its last use.
class Router {
 public:
  /// The arguments must outlive the router.
  Router(Transport& transport, const Wiring& wiring, Recorder& recorder, ProgressMark& progress,
         const PipelineOptions& options);

  /// Begins a step. If `batch` has no weights, they arrive with the values of other ranks.
  void start(uint64_t step, std::size_t microbatches, bool is_training, const Microbatches& batch,
             MemoryMeter* meter);
  /// Waits for the sends that are still in flight, and runs backward into the history of model
  /// inputs that have one.
  void finish();
  /// Releases everything of the step.
  void clear();

  /// The offset of the current action in the rank's list, for the recorder.
  void set_offset(std::size_t offset) { transfers_.set_offset(offset); }
  std::size_t offset() const { return transfers_.offset(); }

  Arguments take_inputs(Action forward);
  void put_outputs(Action forward, const c10::IValue& output);
  std::vector<c10::IValue> take_output_grads(Action backward);
  void put_input_grads(Action backward, std::vector<c10::IValue> grads);

  /// Waits for what a compute action takes from other ranks, before its take_inputs or
  /// take_output_grads, which then do not wait. Returns, by edge from a different rank, the values,
  /// which may be replaced. A second call returns the same.
  std::vector<std::vector<c10::IValue>*> receive_early(Action compute);
  /// The values that an executed compute action gives to other ranks, by edge, until its SEND.
  std::vector<std::vector<c10::IValue>*> outgoing(Action compute);

  /// The values that a compute action takes. save_taken is called before take_inputs or
  /// take_output_grads, restore_taken afterwards, so that the values can be taken again. REQUIRES
  /// receive_early.
  struct Taken {
    std::vector<std::vector<c10::IValue>> values;  // by edge
    std::vector<bool> is_early;                    // likewise
  };
  Taken save_taken(Action compute);
  void restore_taken(Action compute, const Taken& taken);

  void post_receives(Action receive);
  void send(Action send);
  /// For WAIT_SEND_F and WAIT_SEND_B: waits for the sends that the SEND posted.
  void wait_for_sends(Action wait) {
    transfers_.wait_for_sends(wait.with_type(send_of(wait.type())));
  }

  /// Whether this rank waits for a different rank, or did so when an exception was thrown.
  bool is_waiting() const { return transfers_.is_waiting(); }

  /// The weight of the microbatch's loss: from the batch, otherwise from the values that arrived
  /// for the microbatch, otherwise 1 / (microbatches x replicas).
  double weight(MicrobatchId m) const;

 private:
  // The arrivals along an edge: values for an edge into the stage, gradients for an edge out of it.
  struct Arrival {
    PendingPtr receive;
    std::vector<c10::IValue> values;
    bool is_early = false;  // received before the action takes it
  };
  // The values of one microbatch on one stage.
  struct Cell {
    std::vector<Arrival> inputs;                           // by edge in
    std::vector<Arrival> grads;                            // by edge out
    std::vector<std::vector<c10::IValue>> outgoing;        // by edge out, until SEND_F
    std::vector<std::vector<c10::IValue>> outgoing_grads;  // by edge in, until SEND_B
    std::vector<ArgumentOrigin> origins;                   // by argument
    std::vector<std::pair<std::size_t, c10::IValue>>
        model_inputs;                    // those that require grad, with their argument
    std::vector<int32_t> chain_outputs;  // the outputs that the chain carries
    std::size_t num_outputs = 0;
    std::vector<std::pair<c10::VariableVersion, uint32_t>>
        shared;  // outputs that several stages read
  };

  Cell& cell(int32_t local, MicrobatchId m) {
    return cells_[static_cast<std::size_t>(local) * microbatches_ + m.position()];
  }
  /// The arrivals that a compute action takes.
  std::vector<Arrival>& taken_by(Action compute) {
    Cell& c = cell(compute);
    return compute.type() == ActionType::kForward ? c.inputs : c.grads;
  }
  Cell& cell(Action action) { return cell(local(action), action.microbatch()); }
  int32_t local(Action action) const { return wiring_.local_index(action.stage()); }
  const StageWires& wires(Action action) const {
    return wiring_.stages()[static_cast<std::size_t>(local(action))];
  }

  TransferId id_of(const WireEdge& edge, MicrobatchId m, bool is_forward) const;
  void take_values(Cell& cell, const WireEdge& edge, std::size_t e, MicrobatchId m);
  void receive_grads(Arrival& arrival, const WireEdge& edge, MicrobatchId m);
  void take_grads(Cell& cell, const WireEdge& edge, std::size_t e, MicrobatchId m);
  const c10::IValue& model_input(const Ports::Feed& feed, MicrobatchId m) const;
  void add_model_arguments(MicrobatchId m, ArgumentBuilder& builder) const;
  static void keep_model_inputs(Cell& cell, const Arguments& arguments);
  std::vector<c10::IValue> select(const WireEdge& edge, const Cell& cell,
                                  std::span<const c10::IValue> outputs) const;
  void watch_shared_outputs(const StageWires& wires, Cell& cell,
                            std::span<const c10::IValue> outputs) const;
  static void check_shared_outputs(StageId stage, Cell& cell);

  const Rank rank_;
  const Wiring& wiring_;
  const PipelineOptions& options_;
  StepTransfers transfers_;

  uint64_t step_ = 0;
  std::size_t microbatches_ = 0;
  bool is_training_ = true;
  const Microbatches* batch_ = nullptr;
  IndexedVector<MicrobatchId, double> weights_;
  std::vector<Cell> cells_;  // by stage of this rank, then microbatch
  std::vector<std::pair<at::Tensor, at::Tensor>> model_grads_;  // model inputs and their gradients
};

}  // namespace stagecraft
