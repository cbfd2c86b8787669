// Runs a schedule from a CSV text, with a handler of our own for one type of action.

#include <atomic>
#include <cstdio>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

// One line for each rank: its compute actions in order. Rank 0 has stages 0, 1 and 4, rank 1 has 2
// and 3.
constexpr const char* kSchedule =
    "0F0,1F0,0F1,1F1,4F0,4B0,4F1,4B1,1B0,0B0,1B1,0B1\n"
    "2F0,3F0,2F1,3F1,3I0,2I0,3W0,2W0,3I1,2I1,3W1,2W1\n";

int main() {
  torch::manual_seed(0);
  const Schedule schedule = parse_csv(kSchedule);
  const int32_t n = schedule.num_stages();
  std::vector<Stage> stages;
  for (int32_t i = 0; i < n; ++i) {
    stages.emplace_back(
        StageId(i), n,
        stage_body(torch::nn::Sequential(torch::nn::Linear(16, 16), torch::nn::Tanh())));
  }
  Pipeline pipeline(std::move(stages),
                    {.source = ScheduleSource::fixed(schedule),
                     .loss = [](const at::Tensor& y) { return y.square().mean(); }});

  // The built-in F, written as a handler. The built-in code also uses only the functions of the
  // context.
  std::atomic<int> forwards = 0;
  pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    ++forwards;
    Arguments inputs = context.take_inputs();  // waits for values of a different rank
    c10::IValue output =
        context.stage().forward(context.microbatch(), inputs, context.forward_options());
    context.finish_forward(output);  // passes it on; computes the loss on the last stage
  });
  // An observer sees every action. It is called on the threads of both ranks.
  std::atomic<int> sends = 0;
  pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
    if (phase == ActionPhase::kEnd && action.type() == ActionType::kSendForward) ++sends;
  });

  const StepResult result = pipeline.step({torch::randn({6, 16})}, {}, {}, {.microbatches = 2});
  std::printf("loss %.4f, %d forwards, %d sends forward\n", result.loss().item<double>(),
              forwards.load(), sends.load());

  // Draw the measured times of the last step, in the form of a schedule.
  const Recording recording = pipeline.recording();
  std::printf("%s", draw_terminal(recording.schedule, to_simulation(recording),
                                  {.color = TerminalColor::kNone, .title = "as it ran"})
                        .c_str());
}
