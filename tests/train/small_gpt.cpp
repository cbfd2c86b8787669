#include "tests/train/small_gpt.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
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

namespace {

TrainerOptions with_rates(TrainerOptions options) {
  options.seed = 3;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .warmup = 2, .steps = 12};
  options.clip = 0.5;
  return options;
}

}  // namespace

PreparedTrainer prepare(TrainerSetup setup) {
  const Gpt gpt(setup.sizes, 7);
  if (setup.weights != at::kFloat) {
    for (auto& [name, tensor] : gpt.body().parameters) {
      tensor.set_data(tensor.detach().to(setup.weights));
    }
  }
  const Split split{.points = {}, .policy = equal_cost(setup.stages)};
  Pipe pipe = gpt.cut(split, setup.use);
  TrainerOptions& options = setup.options;
  if (setup.sizes.dropout > 0) {
    GptUse evaluation = setup.use;
    evaluation.is_training = false;
    options.evaluation = gpt.cut(split, evaluation);
  }
  return {std::move(pipe), with_rates(std::move(options))};
}

namespace {

// Captured models as files in memory, by what they depend on: capturing takes most of the time of a
// small training.
const std::vector<std::byte>& saved_model(const TrainerSetup& setup) {
  static std::map<std::string, std::vector<std::byte>> models;
  const GptSizes& sizes = setup.sizes;
  std::string key;
  for (const int64_t number :
       {int64_t{setup.stages}, sizes.layers, sizes.width, sizes.heads, sizes.context,
        sizes.vocabulary, static_cast<int64_t>(sizes.positions),
        static_cast<int64_t>(sizes.is_tied), sizes.wide_block.value_or(-1),
        static_cast<int64_t>(setup.use.is_training), setup.use.max_rows,
        static_cast<int64_t>(setup.use.autocast.value_or(at::kFloat)),
        static_cast<int64_t>(setup.weights)}) {
    key += std::to_string(number) + " ";
  }
  std::vector<std::byte>& bytes = models[key];
  if (!bytes.empty()) return bytes;
  const std::string path = testing::TempDir() + "small_gpt_" + std::to_string(::getpid());
  save_pipe(prepare(setup).pipe, path);
  bytes.resize(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::remove(path);
  return bytes;
}

}  // namespace

std::vector<PreparedTrainer> prepare_many(const TrainerSetup& setup, int32_t count) {
  std::vector<PreparedTrainer> all;
  while (static_cast<int32_t>(all.size()) < count) {
    if (setup.sizes.dropout > 0) {
      all.push_back(prepare(setup));  // both models share their tensors
    } else {
      all.push_back({load_pipe("model", saved_model(setup)), with_rates(setup.options)});
    }
  }
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
