// A schedule of one's own from a CSV text, run with an own handling of one kind of action.

#include <atomic>
#include <cstdio>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

// One line a rank: what it computes, in order. Rank 0 has stages 0, 1 and 4, rank 1 has 2 and 3.
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

  // F as it is built in, written out: what the context gives is all that the built-in code uses.
  std::atomic<int> forwards = 0;
  pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    ++forwards;
    Arguments inputs = context.take_inputs();  // waits for what comes from another rank
    c10::IValue output =
        context.stage().forward(context.microbatch(), inputs, context.forward_options());
    context.finish_forward(output);  // hands it on; the loss, on the last stage
  });
  // Observers see every action; this one runs on both ranks' threads.
  std::atomic<int> sends = 0;
  pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
    if (phase == ActionPhase::kEnd && action.type() == ActionType::kSendForward) ++sends;
  });

  const StepResult result = pipeline.step({torch::randn({6, 16})}, {}, {}, {.microbatches = 2});
  std::printf("loss %.4f, %d forwards, %d sends forward\n", result.loss().item<double>(),
              forwards.load(), sends.load());

  // What happened, drawn like a plan: where bars begin and end is measured.
  const Recording recording = pipeline.recording();
  std::printf("%s", draw_terminal(recording.schedule, to_simulation(recording),
                                  {.color = TerminalColor::kNone, .title = "as it ran"})
                        .c_str());
}
