#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Text as bytes. The last share `held_out` is for evaluation, the rest for training.
class TextData {
 public:
  /// All files, concatenated. FileError if a file cannot be read. ArgumentError if there is none,
  /// if held_out is not in [0, 1), or if all files are empty.
  static TextData read(const std::vector<std::string>& paths, double held_out = 0.1);
  explicit TextData(std::string text, double held_out = 0.1);

  /// One dimension, bytes.
  const at::Tensor& training() const { return training_; }
  const at::Tensor& evaluation() const { return evaluation_; }
  /// Differs for different texts.
  uint64_t checksum() const { return checksum_; }
  /// The loss of guessing each byte by its frequency alone, in nats for each byte. A trained model
  /// should be below it.
  double unigram_entropy() const;

 private:
  at::Tensor training_;
  at::Tensor evaluation_;
  uint64_t checksum_ = 0;
};

/// An endless sequence of rows of a text in random order. Each pass over the text has every row
/// once, in a new order and with new boundaries. The rows depend on the seed and on the number of
/// rows drawn before, so a position is one number.
class TextRows {
 public:
  /// Rows of length + 1 bytes. ArgumentError if the text is shorter than 2 * length + 1.
  TextRows(at::Tensor text, int64_t length, uint64_t seed);

  /// The next rows: inputs, and targets, which are one byte later. Both are int64 [rows, length].
  std::pair<at::Tensor, at::Tensor> draw(int64_t rows);

  /// The number of rows drawn.
  int64_t position() const { return position_; }
  void set_position(int64_t position);
  /// The number of rows of a pass over the text.
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
