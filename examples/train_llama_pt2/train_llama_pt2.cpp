// Splits a LLaMA that Python has exported between its layers, and trains it on two ranks without
// Python.
//
//   python export_llama.py write llama.pt2
//   train_llama_pt2 llama.pt2 TEXT trained.pt
//   python export_llama.py check llama.pt2 trained.pt

#include <cstdio>
#include <exception>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: train_llama_pt2 MODEL.pt2 TEXT WEIGHTS.pt\n");
    return 2;
  }
  try {
    const ExportedArchive archive(argv[1]);
    for (const std::string& warning : archive.warnings())
      std::printf("note: %s\n", warning.c_str());

    // Split points are names of modules in Python. The tied embedding is sent to the stage of the
    // head.
    const Pipe pipe(archive.graph(), {.points = {{"model.layers.2", SplitPoint::kBeginning}}},
                    {.by_default = SharedParameter::kTransmit});
    std::printf("%s\n", pipe.table().c_str());

    // The archive was exported with labels: its output has the loss.
    const Loss loss([](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
      return output.toGenericDict().at("loss");
    });
    TrainerOptions options{.schedule = "1F1B", .microbatches = 4};
    options.learning_rate = {.peak = 3e-3, .least = 3e-4, .warmup = 5, .steps = 60};
    Trainer trainer(pipe, loss, options);

    TextRows rows(TextData::read({argv[2]}).training(), /*length=*/48, /*seed=*/1);
    while (trainer.steps() < options.learning_rate.steps) {
      const auto [ids, next] = rows.draw(16);
      const Arguments inputs{{}, {{"input_ids", ids}, {"labels", ids}}};
      const TrainStep step = trainer.step(inputs, c10::IValue());
      if (step.step % 20 == 0 || step.step == 1) {
        std::printf("step %2ld  loss %.3f\n", static_cast<long>(step.step), step.loss);
      }
    }
    save_state_dict(pipe, argv[3]);
    std::printf("saved %s\n", argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
