#include "tests/train/small_gpt.h"

#include <filesystem>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include "stagecraft/partition/pipe_file.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft {

GptSizes small_sizes() {
  return {.layers = 4, .width = 16, .heads = 2, .context = 8, .vocabulary = 32};
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

PreparedTrainer prepare(TrainerSetup setup) {
  const Gpt gpt(setup.sizes, 7);
  const Split split{.points = {}, .policy = equal_cost(setup.stages)};
  Pipe pipe = gpt.cut(split, setup.use);
  TrainerOptions& options = setup.options;
  if (setup.sizes.dropout > 0) {
    GptUse evaluation = setup.use;
    evaluation.is_training = false;
    options.evaluation = gpt.cut(split, evaluation);
  }
  options.seed = 3;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .warmup = 2, .steps = 12};
  options.clip = 0.5;
  return {std::move(pipe), std::move(options)};
}

std::vector<PreparedTrainer> prepare_many(const TrainerSetup& setup, int32_t count) {
  std::vector<PreparedTrainer> all = {prepare(setup)};
  const std::string path = testing::TempDir() + "small_gpt_" + std::to_string(::getpid());
  if (!all.front().options.evaluation) save_pipe(all.front().pipe, path);
  while (static_cast<int32_t>(all.size()) < count) {
    if (all.front().options.evaluation) {
      all.push_back(prepare(setup));  // both models share their tensors
    } else {
      all.push_back({load_pipe(path), all.front().options});
    }
  }
  std::filesystem::remove(path);
  return all;
}

Trainer PreparedTrainer::make(Transport* transport, int32_t replicas) const {
  TrainerOptions own = options;
  own.transport = transport;
  own.replicas = replicas;
  return Trainer(pipe, cross_entropy, std::move(own));
}

Trainer make_trainer(TrainerSetup setup) {
  return prepare(std::move(setup)).make();
}

std::pair<at::Tensor, at::Tensor> batch_of(int64_t step) {
  const RandomScope random(static_cast<uint64_t>(1000 + step));
  const at::Tensor ids = at::randint(0, small_sizes().vocabulary, {9, 9}, at::kLong);
  return {ids.slice(1, 0, 8), ids.slice(1, 1, 9)};
}

std::vector<double> curve(Trainer& trainer, int64_t until) {
  std::vector<double> numbers;
  while (trainer.steps() < until) {
    const auto [inputs, targets] = batch_of(trainer.steps());
    const TrainStep step = trainer.step({inputs}, targets);
    numbers.push_back(step.loss);
    numbers.push_back(step.grad_norm);
  }
  return numbers;
}

std::vector<at::Tensor> values_of(const Trainer& trainer) {
  std::vector<at::Tensor> values;
  for (const ModelState& state : trainer.states())
    values.push_back(state.tensor().detach().clone());
  return values;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace stagecraft
