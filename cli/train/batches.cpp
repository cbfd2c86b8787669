#include "cli/train/batches.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/failure.h"

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

class TextBatches : public Batches {
 public:
  explicit TextBatches(TextRows rows) : rows_(std::move(rows)) {}
  NamedTensors draw(int64_t rows) override {
    auto [inputs, targets] = rows_.draw(rows);
    return {{"ids", std::move(inputs)}, {"targets", std::move(targets)}};
  }
  int64_t position() const override { return rows_.position(); }
  void set_position(int64_t position) override { rows_.set_position(position); }

 private:
  TextRows rows_;
};

class TensorBatches : public Batches {
 public:
  explicit TensorBatches(TensorRows rows) : rows_(std::move(rows)) {}
  NamedTensors draw(int64_t rows) override { return rows_.draw(rows); }
  int64_t position() const override { return rows_.position(); }
  void set_position(int64_t position) override { rows_.set_position(position); }

 private:
  TensorRows rows_;
};

/// The corpus next to the program. The path is the same in a build and in an installation.
std::string own_corpus() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path corpus =
      program.parent_path().parent_path() / "share/stagecraft/corpus/pride_and_prejudice.txt";
  if (!fs::exists(corpus, error)) {
    throw BadUsage(
        fmt::format("there is no corpus at {}; pass texts with --data", corpus.string()));
  }
  return corpus.string();
}

std::unique_ptr<Batches> text_batches(const TrainCommand& command, const at::Tensor& text,
                                      const char* which, uint64_t seed) {
  const int64_t context = command.model.context;
  if (text.numel() <= 2 * context) {
    throw BadUsage(
        fmt::format("the {} part of the text has {} bytes; --context {} needs at least {}", which,
                    text.numel(), context, 2 * context + 1));
  }
  return std::make_unique<TextBatches>(TextRows(text, context, seed));
}

}  // namespace

TrainingData::TrainingData(TrainCommand& command) {
  if (command.data.empty()) {
    text_ = TextData::read({own_corpus()}, command.held_out);
    return;
  }
  for (std::string& path : command.data) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored))
      throw BadUsage(fmt::format("--data {} is a folder, expected a file", path));
    path = fs::absolute(path).string();
  }
  command.given["--data"] = command.data;
  const bool is_tensors = command.data.front().ends_with(".pt");
  if (!is_tensors) {
    text_ = TextData::read(command.data, command.held_out);
    return;
  }
  if (command.model_file.empty()) {
    throw BadUsage("--data with examples as tensors (.pt) needs --model");
  }
  if (command.data.size() > 1) {
    throw BadUsage("--data takes only one file of examples as tensors (.pt)");
  }
  tensors_ = TensorData::read(command.data.front(), command.held_out);
  command.unit = "examples";
  command.model.context = 1;
}

bool TrainingData::has_evaluation() const {
  return text_ ? text_->evaluation().numel() > 0 : tensors_->evaluation_rows() > 0;
}

std::unique_ptr<Batches> TrainingData::training(const TrainCommand& command, uint64_t seed) const {
  if (text_) return text_batches(command, text_->training(), "training", seed);
  return std::make_unique<TensorBatches>(
      TensorRows(tensors_->tensors(), 0, tensors_->training_rows(), seed));
}

std::unique_ptr<Batches> TrainingData::evaluation(const TrainCommand& command,
                                                  uint64_t seed) const {
  if (text_) return text_batches(command, text_->evaluation(), "held-out", seed);
  return std::make_unique<TensorBatches>(TensorRows(tensors_->tensors(), tensors_->training_rows(),
                                                    tensors_->evaluation_rows(), seed));
}

uint64_t TrainingData::checksum() const {
  return text_ ? text_->checksum() : tensors_->checksum();
}

std::string TrainingData::describe() const {
  if (!text_) return fmt::format("{} examples", tensors_->rows());
  return fmt::format("{} bytes of text, unigram entropy {:.4f} nats a byte",
                     text_->training().numel() + text_->evaluation().numel(),
                     text_->unigram_entropy());
}

NamedTensors TrainingData::examples() const {
  return tensors_ ? tensors_->tensors() : NamedTensors();
}

}  // namespace stagecraft::cli
