// Trains a model whose stages were compiled ahead of time, on ranks that are threads, without
// Python.
//
//   python export_gpt.py gpt.pt2
//   stagecraft compile gpt.pt2 --split layers.1,layers.2,layers.3
//   train_compiled gpt.scp TEXT

#include <cstdio>
#include <exception>

#include <ATen/ops/cross_entropy_loss.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: train_compiled MODEL.scp TEXT\n");
    return 2;
  }
  try {
    const CompiledPipe pipe = CompiledPipe::load(argv[1]);
    std::printf("%s\n", pipe.table().c_str());
    for (const CompiledMemory& memory : pipe.memory()) {
      std::printf("a microbatch holds %ld bytes after F, %ld after I\n",
                  static_cast<long>(memory.saved), static_cast<long>(memory.kept));
    }

    const Loss loss([](const at::Tensor& logits, const at::Tensor& targets) {
      return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
    });
    // With ZBVZeroBubble, weight backwards fill the time in which ranks would wait.
    TrainerOptions options{.schedule = "ZBVZeroBubble", .ranks = pipe.num_stages() / 2};
    options.microbatches = 4;
    options.learning_rate = {.peak = 3e-3, .least = 3e-4, .warmup = 5, .steps = 40};
    Trainer trainer(pipe, loss, options);

    // Rows as long as those that the model was exported with.
    const Graph& model = pipe.graph();
    const GraphValue& ids = model.value(*model.parts().inputs.front().value());
    TextRows rows(TextData::read({argv[2]}).training(), ids.shape.at(1).number(), /*seed=*/1);
    while (trainer.steps() < options.learning_rate.steps) {
      const auto [inputs, targets] = rows.draw(16);
      const TrainStep step = trainer.step({inputs}, targets);
      if (step.step % 10 == 0 || step.step == 1) {
        std::printf("step %2ld  loss %.3f\n", static_cast<long>(step.step), step.loss);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
