#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Text as bytes: the last `held_out` of it is for evaluation, the rest for training.
class TextData {
 public:
  /// All files, one after another. FileError for one that cannot be read, ArgumentError when there
  /// are none, when held_out is not in [0, 1), or when together they are empty.
  static TextData read(const std::vector<std::string>& paths, double held_out = 0.1);
  explicit TextData(std::string text, double held_out = 0.1);

  /// One dimension, bytes.
  const at::Tensor& training() const { return training_; }
  const at::Tensor& evaluation() const { return evaluation_; }
  /// A number that is another one when the text is.
  uint64_t checksum() const { return checksum_; }
  /// What guessing each byte by its frequency alone costs, in nats a byte: what a model has to
  /// beat.
  double unigram_entropy() const;

 private:
  at::Tensor training_;
  at::Tensor evaluation_;
  uint64_t checksum_ = 0;
};

/// Rows of a text in random order, without end: each time through the text has every row once, in
/// another order and cut at other places. Which rows come depends on the seed and on how many were
/// drawn before, so a position is one number.
class TextRows {
 public:
  /// Rows of length + 1 bytes. ArgumentError when the text is shorter than 2 * length + 1.
  TextRows(at::Tensor text, int64_t length, uint64_t seed);

  /// The next rows: inputs and, one byte on, targets; both [rows, length], int64.
  std::pair<at::Tensor, at::Tensor> draw(int64_t rows);

  /// How many rows were drawn.
  int64_t position() const { return position_; }
  void set_position(int64_t position);
  /// Rows each time through the text.
  int64_t rows_per_pass() const { return per_pass_; }

 private:
  void start_pass(int64_t pass);

  at::Tensor text_;
  int64_t length_;
  uint64_t seed_;
  int64_t per_pass_;
  int64_t position_ = 0;
  int64_t pass_ = -1;
  int64_t shift_ = 0;
  std::vector<int64_t> order_;
};

}  // namespace stagecraft
