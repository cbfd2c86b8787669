#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/train/command.h"
#include "stagecraft/train/tensor_data.h"
#include "stagecraft/train/text_data.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft::cli {

/// A sequence of batches to train on: rows by name.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual NamedTensors draw(int64_t rows) = 0;
  virtual int64_t position() const = 0;
  virtual void set_position(int64_t position) = 0;
};

/// The data of a command: texts, with rows "ids" and, one byte later, "targets"; or examples as
/// tensors, with the names of their file.
class TrainingData {
 public:
  /// BadUsage for data that cannot be read. Paths in the command become absolute.
  explicit TrainingData(TrainCommand& command);

  bool is_text() const { return text_.has_value(); }
  bool has_evaluation() const;
  /// BadUsage if there is too little data.
  std::unique_ptr<Batches> training(const TrainCommand& command, uint64_t seed) const;
  std::unique_ptr<Batches> evaluation(const TrainCommand& command, uint64_t seed) const;
  uint64_t checksum() const;
  /// "123 bytes of text, unigram entropy 3.1 nats a byte".
  std::string describe() const;
  /// The examples, if the data is tensors; empty for a text.
  NamedTensors examples() const;

 private:
  std::optional<TextData> text_;
  std::optional<TensorData> tensors_;
};

}  // namespace stagecraft::cli
