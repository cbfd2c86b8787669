// Trains a small model for a few steps and reports the last, for tests that look at it from
// outside:
//
//   report_page FOLDER NAME SCHEDULE RANKS STAGES [failed|plain]
//
// Writes NAME.html, NAME.json and NAME.trace.json. failed: the last step throws half way; plain:
// memory is not measured, there are no losses.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/base/error.h"
#include "stagecraft/report/save_report.h"
#include "stagecraft/stage/callable.h"

namespace stagecraft {
namespace {

constexpr int64_t kWidth = 192;

void run(const std::string& file, const std::string& schedule, int32_t ranks, int32_t stages,
         const std::string& variant) {
  std::atomic<bool> fails = false;
  std::vector<Stage> all;
  ReportOptions report{.title = schedule + " on a small model",
                       .command = "report_page \"</script>\" --schedule " + schedule,
                       .figures = {{"rows/s", "123,456"}}};
  for (int32_t s = 0; s < stages; ++s) {
    StageBody body;
    std::vector<at::Tensor> weights;
    for (int32_t layer = 0; layer < 2 + s % 2; ++layer) {
      weights.push_back(at::randn({kWidth, kWidth}).div_(14).requires_grad_());
      body.parameters.emplace_back("weight" + std::to_string(layer), weights.back());
    }
    body.forward = [weights, &fails, s](const Args& args, const Kwargs&) -> c10::IValue {
      if (fails && s == 1) throw std::runtime_error("a stage that fails");
      at::Tensor x = args.front().toTensor();
      for (const at::Tensor& weight : weights) x = at::tanh(at::linear(x, weight));
      return x;
    };
    all.emplace_back(StageId(s), stages, std::move(body));
    report.stage_names.push_back("layers." + std::to_string(3 * s));
  }
  Pipeline pipeline(
      std::move(all),
      {.schedule = schedule, .ranks = ranks, .loss = [](const at::Tensor& y, const at::Tensor& t) {
         return at::mse_loss(y, t);
       }});
  const bool is_plain = variant == "plain";
  const at::Tensor x = at::randn({64 * 8, kWidth});
  const at::Tensor y = at::tanh(at::randn({64 * 8, kWidth}));
  for (int64_t step = 0; step < 24; ++step) {
    const StepResult result = pipeline.step(
        {x}, {}, y, {.microbatches = 8, .outputs = OutputMode::kNone, .measure_memory = !is_plain});
    for (int32_t s = 0; s < stages; ++s) {
      for (const auto& [name, parameter] : pipeline.stage(StageId(s)).parameters()) {
        at::Tensor(parameter.variable_data()).sub_(parameter.grad(), 2);
      }
    }
    for (int32_t s = 0; s < stages; ++s) {
      for (const auto& [name, parameter] : pipeline.stage(StageId(s)).parameters()) {
        parameter.grad().zero_();
      }
    }
    if (is_plain) continue;
    const auto loss = result.loss().item<double>();
    report.losses.push_back({step, loss});
    if (step % 6 == 5) report.evaluations.push_back({step, loss * 1.01});
  }
  if (variant == "failed") {
    pipeline.callbacks().observe([&](Rank, Action action, ActionPhase) {
      if (action.microbatch() == MicrobatchId(4) && action.type() == ActionType::kForward) {
        fails = true;
      }
    });
    try {
      pipeline.step({x}, {}, y, {.microbatches = 8, .measure_memory = true});
    } catch (const Error& error) {
      report.failure = error.what();
    }
  }
  for (const char* ending : {".html", ".json", ".trace.json"}) {
    save_report(file + ending, pipeline, report);
  }
}

}  // namespace
}  // namespace stagecraft

int main(int argc, char** argv) {
  try {
    if (argc < 6) throw std::runtime_error("expected FOLDER NAME SCHEDULE RANKS STAGES");
    stagecraft::run(std::string(argv[1]) + "/" + argv[2], argv[3], std::atoi(argv[4]),
                    std::atoi(argv[5]), argc > 6 ? argv[6] : "");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
