#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft {

/// What runs a Trainer's microbatches: all ranks as threads of this process, or one rank of a
/// world, whose other ranks make the same calls.
class TrainEngine {
 public:
  virtual ~TrainEngine() = default;
  TrainEngine(const TrainEngine&) = delete;
  TrainEngine& operator=(const TrainEngine&) = delete;

  virtual int32_t replicas() const = 0;
  /// Of one replica.
  virtual int32_t num_ranks() const = 0;
  /// Whether the stage is trained in this process.
  virtual bool has_stage(StageId stage) const = 0;

  /// Runs what all ranks do together. What is thrown on one of them ends it on all, and then all
  /// can go on: what ends it on every rank anyway is better thrown outside.
  virtual void together(const std::function<void()>& body) = 0;

  // In `together` ---------------------------------------------------------------------------------

  /// One step of the pipeline, or its forwards, with the microbatches of all replicas, replica by
  /// replica. Every rank has all losses and weights.
  virtual StepResult step(Microbatches all, bool measure_memory) = 0;
  virtual StepResult eval(Microbatches all) = 0;
  /// The forwards of one replica's microbatches; every rank has the outputs.
  virtual StepResult predict(Microbatches batch, OutputMode outputs) = 0;

  /// What the ranks of the first replica have passed; of threads, one value for all.
  virtual std::vector<c10::IValue> gather(c10::IValue own) = 0;
  /// By stage, on rank 0: what `of_stage` gives where the stage is. Other ranks get nothing.
  virtual std::vector<std::vector<at::Tensor>> collect(
      const std::function<std::vector<at::Tensor>(StageId)>& of_stage) = 0;
  /// The last step, of this rank's replica.
  virtual RecordedRun recorded_run() = 0;
  virtual double bubble_share() = 0;

  // At any time
  // ------------------------------------------------------------------------------------

  virtual uint64_t completed_steps() const = 0;
  virtual void set_completed_steps(uint64_t steps) = 0;

 protected:
  TrainEngine() = default;
};

/// ArgumentError for options that do not fit the pipe.
std::unique_ptr<TrainEngine> make_thread_engine(const Pipe& pipe, const Loss& loss,
                                                const TrainerOptions& options);
/// Likewise, or the world.
std::unique_ptr<TrainEngine> make_rank_engine(const Pipe& pipe, const Loss& loss,
                                              const TrainerOptions& options);

}  // namespace stagecraft
