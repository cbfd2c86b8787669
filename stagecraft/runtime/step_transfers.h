#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/memory_meter.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// The transfers of one rank's step: posts them, waits for them, and counts bytes and times. Every
/// wait ends after PipelineOptions::timeout with a TimeoutError.
class StepTransfers {
 public:
  /// The arguments must outlive the object.
  StepTransfers(Transport& transport, Recorder& recorder, ProgressMark& progress,
                const PipelineOptions& options)
      : transport_(transport), recorder_(recorder), progress_(progress), options_(options) {}

  /// A new step; `meter` may be null.
  void start(MemoryMeter* meter) { meter_ = meter; }
  /// Waits for the sends that are still in flight.
  void finish();
  /// Releases everything of the step.
  void clear();

  /// The offset of the current action in the rank's list, for the recorder.
  void set_offset(std::size_t offset) { offset_ = offset; }
  std::size_t offset() const { return offset_; }

  PendingPtr post_receive(Rank from, const TransferId& id) {
    return transport_.post_receive(from, id);
  }
  /// `send` is the SEND_F or SEND_B.
  void post_send(Action send, Rank to, const TransferId& id, std::vector<c10::IValue> values);
  /// Waits for the sends that `send` posted.
  void wait_for_sends(Action send);
  /// Waits for a receive. ArgumentError if `pending` is null, MetadataError if the peer sent no
  /// tuple.
  std::vector<c10::IValue> receive(const PendingPtr& pending, Rank from, const TransferId& id);

  /// Whether this rank waits for a different rank, or did so when an exception was thrown.
  bool is_waiting() const { return is_waiting_; }

 private:
  struct PostedSend {
    Action action;  // SEND_F or SEND_B
    PendingPtr pending;
  };

  Deadline deadline() const { return Deadline::after(options_.timeout); }
  void wait_send(const PendingPtr& pending);

  Transport& transport_;
  Recorder& recorder_;
  ProgressMark& progress_;
  const PipelineOptions& options_;
  MemoryMeter* meter_ = nullptr;
  std::size_t offset_ = 0;
  bool is_waiting_ = false;
  std::vector<PostedSend> sends_;  // that are not known to be complete
};

}  // namespace stagecraft
