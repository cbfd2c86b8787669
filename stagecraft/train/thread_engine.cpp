#include <utility>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/run_report.h"
#include "stagecraft/train/engine.h"

namespace stagecraft {

namespace {

class ThreadEngine : public TrainEngine {
 public:
  ThreadEngine(const Pipe& pipe, const Loss& loss, const TrainerOptions& options)
      : pipeline_(make_pipeline(pipe, loss, options)),
        // Its own, so that what was recorded of the last step of training stays.
        evaluation_(make_pipeline(options.evaluation ? *options.evaluation : pipe, loss, options)) {
    for (const int32_t stage : options.recompute) {
      pipeline_.stage(StageId(stage)).set_recompute(true);
    }
  }

  int32_t replicas() const override { return 1; }
  int32_t num_ranks() const override { return pipeline_.num_ranks(); }
  bool has_stage(StageId) const override { return true; }

  void together(const std::function<void()>& body) override { body(); }

  StepResult step(Microbatches all, bool measure_memory) override {
    return pipeline_.step(std::move(all),
                          {.outputs = OutputMode::kNone, .measure_memory = measure_memory});
  }
  StepResult eval(Microbatches all) override { return predict(std::move(all), OutputMode::kNone); }
  StepResult predict(Microbatches batch, OutputMode outputs) override {
    return evaluation_.eval(std::move(batch), {.outputs = outputs});
  }

  std::vector<c10::IValue> gather(c10::IValue own) override { return {std::move(own)}; }
  std::vector<std::vector<at::Tensor>> collect(
      const std::function<std::vector<at::Tensor>(StageId)>& of_stage) override {
    std::vector<std::vector<at::Tensor>> all;
    for (int32_t s = 0; s < pipeline_.num_stages(); ++s) all.push_back(of_stage(StageId(s)));
    return all;
  }
  RecordedRun recorded_run() override { return recorded_run_of(pipeline_); }
  double bubble_share() override { return pipeline_.report().bubble_share; }

  uint64_t completed_steps() const override { return pipeline_.completed_steps(); }
  void set_completed_steps(uint64_t steps) override { pipeline_.set_completed_steps(steps); }

 private:
  static Pipeline make_pipeline(const Pipe& pipe, const Loss& loss, const TrainerOptions& options) {
    return Pipeline(pipe, {.schedule = options.schedule,
                           .ranks = options.ranks,
                           .source = options.source,
                           .loss = loss,
                           .timeout = options.timeout,
                           .seed = options.seed,
                           .threads_per_rank = options.threads_per_rank});
  }

  Pipeline pipeline_;
  Pipeline evaluation_;
};

}  // namespace

std::unique_ptr<TrainEngine> make_thread_engine(const Pipe& pipe, const Loss& loss,
                                                const TrainerOptions& options) {
  return std::make_unique<ThreadEngine>(pipe, loss, options);
}

}  // namespace stagecraft
