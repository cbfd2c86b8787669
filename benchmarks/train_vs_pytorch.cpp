// Trains the demo's GPT four times from the same weights on the same batches: through a pipeline of
// two ranks, in a plain loop, and both in PyTorch (train_vs_pytorch_worker.py). Losses first: ours
// are bitwise equal, PyTorch's nearly equal. Then the time of an update of both pipelines, in
// turns. One thread inside operators for each rank, ours a thread, PyTorch's a process; none is
// pinned.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor_split.h>

#include "benchmarks/harness.h"
#include "benchmarks/python_reference.h"
#include "cli/train/gpt.h"
#include "stagecraft/base/error.h"
#include "stagecraft/train/adamw.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/checkpoint_writer.h"
#include "stagecraft/train/clip.h"
#include "stagecraft/train/learning_rate.h"
#include "stagecraft/train/text_data.h"
#include "stagecraft/train/trainer.h"

namespace {

using namespace stagecraft;
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kSeed = 1;
constexpr int32_t kRanks = 2;
constexpr double kClip = 1;
constexpr double kCheckpointGoal = 1.1;
constexpr double kLossGoal = 1e-3;
constexpr double kQuickLossGoal = 1e-5;
constexpr int kPerTurn = 10;  // updates

/// The setting of all four runs: the defaults of `stagecraft train`, except for the number of
/// updates.
struct Setting {
  GptSizes sizes = {};
  int64_t cut = 2;  // the block at which the second stage begins
  int32_t updates = 200;
  int64_t rows = 16;
  int32_t microbatches = 8;
  LearningRate rate = {.peak = 3e-3, .least = 3e-4, .warmup = 20, .steps = 200};
  AdamWOptions adamw = {};

  int64_t tokens() const { return rows * sizes.context; }
};

Setting small_setting() {
  Setting small;
  small.sizes = {.layers = 2, .width = 16, .heads = 2, .context = 8};
  small.cut = 1;
  small.updates = 8;
  small.rows = 4;
  small.microbatches = 2;
  // A high rate, so that weights soon differ from their initial values, and every operator affects
  // the loss.
  small.rate = {.peak = 3e-2, .least = 3e-3, .warmup = 2, .steps = small.updates};
  return small;
}

/// The batches of all updates. A longer run repeats them.
struct Batches {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;

  explicit Batches(const Setting& setting) {
    const TextData text =
        TextData::read({SC_BENCH_SCRIPTS "/../examples/corpus/pride_and_prejudice.txt"});
    TextRows rows(text.training(), setting.sizes.context, kSeed);
    for (int32_t i = 0; i < setting.updates; ++i) {
      auto [input, target] = rows.draw(setting.rows);
      inputs.push_back(std::move(input));
      targets.push_back(std::move(target));
    }
  }
  std::size_t place(int64_t update) const {
    return static_cast<std::size_t>(update) % inputs.size();
  }
};

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

Trainer make_trainer(const Setting& setting) {
  const Gpt gpt(setting.sizes, kSeed);
  const Split split{.points = {{fmt::format("blocks.{}", setting.cut), SplitPoint::kBeginning}}};
  return Trainer(gpt.cut(split, {.max_rows = setting.rows / setting.microbatches}), loss_of,
                 {.schedule = "1F1B",
                  .ranks = kRanks,
                  .threads_per_rank = 1,
                  .microbatches = setting.microbatches,
                  .learning_rate = setting.rate,
                  .adamw = setting.adamw,
                  .clip = kClip});
}

/// The same model, neither captured nor split, in the training loop of a program without a
/// pipeline.
class PlainLoop {
 public:
  explicit PlainLoop(const Setting& setting)
      : setting_(setting),
        body_(Gpt(setting.sizes, kSeed).body()),
        states_(states_of(body_)),
        optimizer_(states_, setting.adamw) {}

  double update(const at::Tensor& inputs, const at::Tensor& targets) {
    optimizer_.zero_grad();
    const double weight = 1.0 / setting_.microbatches;
    const std::vector<at::Tensor> xs = at::tensor_split(inputs, setting_.microbatches);
    const std::vector<at::Tensor> ts = at::tensor_split(targets, setting_.microbatches);
    double sum = 0;
    for (std::size_t m = 0; m < xs.size(); ++m) {
      const at::Tensor loss = loss_of(body_.forward({xs[m]}, {}).toTensor(), ts[m]);
      at::mul(loss, weight).backward();
      sum += weight * loss.item<double>();
    }
    clip_grads(states_, grad_norm(states_), kClip);
    optimizer_.step(setting_.rate.at(updates_++));
    return sum;
  }

 private:
  static std::vector<ModelState> states_of(const StageBody& body) {
    std::vector<ModelState> states;
    for (const auto& [name, tensor] : body.parameters) {
      states.push_back({.name = name, .stage = StageId(0), .copies = {tensor}});
    }
    return states;
  }

  Setting setting_;
  StageBody body_;
  std::vector<ModelState> states_;
  AdamW optimizer_;
  int64_t updates_ = 0;
};

/// A temporary folder that the destructor removes.
class ScratchFolder {
 public:
  ScratchFolder() : path_((fs::temp_directory_path() / "stagecraft_train_XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw Error("cannot make " + path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Writes all data that PyTorch's side needs, as a checkpoint: initial weights, batches, and the
/// rest as notes.
std::string write_start(const std::string& folder, const Setting& setting, const Batches& batches,
                        const Trainer& trainer) {
  const Json notes = {
      {"layers", setting.sizes.layers},
      {"width", setting.sizes.width},
      {"heads", setting.sizes.heads},
      {"context", setting.sizes.context},
      {"vocabulary", setting.sizes.vocabulary},
      {"cut", setting.cut},
      {"microbatches", setting.microbatches},
      {"clip", kClip},
      {"rate",
       {{"peak", setting.rate.peak},
        {"least", setting.rate.least},
        {"warmup", setting.rate.warmup},
        {"steps", setting.rate.steps}}},
      {"adamw",
       {{"betas", {setting.adamw.beta1, setting.adamw.beta2}},
        {"eps", setting.adamw.epsilon},
        {"weight_decay", setting.adamw.weight_decay}}},
  };
  Checkpoint start = trainer.checkpoint(notes.dump());
  start.stages.front()["batches"] = {{"inputs", at::stack(batches.inputs)},
                                     {"targets", at::stack(batches.targets)}};
  return save_checkpoint(folder, start);
}

/// PyTorch's losses, one for each update.
std::vector<double> train_python(bench::PythonReference& python, const std::string& name,
                                 const std::string& folder, int32_t updates) {
  const bench::Timed run = python.run(name);
  for (int32_t done = 0; done < updates; done += kPerTurn) {
    run(std::min<int32_t>(kPerTurn, updates - done));
  }
  std::ifstream file(fmt::format("{}/losses-{}.json", folder, name));
  return Json::parse(file).get<std::vector<double>>();
}

void report_difference(bench::Suite& suite, const std::string& name,
                       const std::vector<double>& ours, const std::vector<double>& theirs) {
  if (theirs.size() != ours.size()) {
    throw Error(fmt::format("{}: expected {} losses, got {}", name, ours.size(), theirs.size()));
  }
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(ours[i] - theirs[i]));
  }
  suite.report({fmt::format("loss of update {}, {}", ours.size(), name), theirs.back(), "nats"});
  suite.report(
      {"  difference from ours", std::abs(ours.back() - theirs.back()), "nats", kLossGoal});
  suite.report({"  largest in any update", largest, "nats"});
  // Rounding errors cannot grow in a few updates, so a larger difference means that the models
  // differ.
  if (suite.quick() && !(largest <= kQuickLossGoal)) {
    throw Error(fmt::format("{}: its losses are not ours, by {}", name, largest));
  }
}

void compare_losses(bench::Suite& suite, const Setting& setting, const Batches& batches,
                    Trainer& trainer, bench::PythonReference& python, const std::string& folder) {
  PlainLoop plain(setting);
  std::vector<double> losses;
  int different = 0;
  for (int32_t i = 0; i < setting.updates; ++i) {
    const std::size_t at = batches.place(i);
    losses.push_back(trainer.step({batches.inputs[at]}, batches.targets[at]).loss);
    if (plain.update(batches.inputs[at], batches.targets[at]) != losses.back()) ++different;
  }
  suite.report({fmt::format("loss of update {}, two ranks", losses.size()), losses.back(), "nats"});
  suite.report({"  updates whose loss is not that of the plain loop in every bit",
                static_cast<double>(different), "", 0});
  if (different > 0) throw Error("the losses of the pipeline are not those of the plain loop");
  for (const char* name : {"plain", "1F1B"}) {
    report_difference(suite, fmt::format("PyTorch, {}", name), losses,
                      train_python(python, name, folder, setting.updates));
  }
}

void compare_speed(bench::Suite& suite, const Setting& setting, const Batches& batches,
                   Trainer& trainer, bench::PythonReference& python) {
  const bench::Timed ours = bench::timed([&] {
    for (int i = 0; i < kPerTurn; ++i) {
      const std::size_t at = batches.place(trainer.steps());
      trainer.step({batches.inputs[at]}, batches.targets[at]);
    }
  });
  const bench::Timed theirs = [run = python.run("1F1B")](int turns) {
    return run(turns * kPerTurn);
  };
  suite.compare(fmt::format("an update of {} tokens, 1F1B on two ranks", setting.tokens()), ours,
                {{"PyTorch", theirs, 1.0}}, kPerTurn);
  if (suite.rows().empty()) return;
  const bench::Row& row = suite.rows().back();
  const auto tokens = static_cast<double>(setting.tokens());
  suite.report({"tokens/s, two ranks", tokens / row.ours.seconds, ""});
  suite.report({"tokens/s, PyTorch's two processes", tokens / row.theirs.seconds, ""});
}

/// An update with a checkpoint: the checkpoint is copied before the update, and written during it.
void compare_checkpoints(bench::Suite& suite, const Batches& batches, Trainer& trainer,
                         const std::string& folder) {
  const auto update = [&] {
    const std::size_t at = batches.place(trainer.steps());
    trainer.step({batches.inputs[at]}, batches.targets[at]);
  };
  CheckpointWriter writer(folder + "/run", 2);
  const bench::Timed with = [&](int iterations) {
    double seconds = 0;
    for (int i = 0; i < iterations; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      writer.start(trainer.checkpoint());
      update();
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      writer.finish();
    }
    return seconds;
  };
  suite.compare("an update with a checkpoint, beside which it is written", with,
                {{"an update without one", bench::timed(update), kCheckpointGoal}});
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  const Setting setting = suite.quick() ? small_setting() : Setting();
  const Batches batches(setting);
  Trainer trainer = make_trainer(setting);
  const ScratchFolder folder;
  bench::PythonReference python(
      "vs_pytorch_ranks.py",
      {"train_vs_pytorch_worker.py", write_start(folder.path(), setting, batches, trainer)});
  compare_losses(suite, setting, batches, trainer, python, folder.path());
  compare_speed(suite, setting, batches, trainer, python);
  compare_checkpoints(suite, batches, trainer, folder.path());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("train_vs_pytorch", argc, argv, measure);
}
