#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// Examples as named tensors whose rows belong together: row 3 of each is example 3. The last
/// `held_out` of them are for evaluation, the rest for training.
class TensorData {
 public:
  /// A file that Python has written with torch.save({"pixel_values": x, "labels": y}, path).
  /// FileError for one that is none, ArgumentError where tensors have no rows or not the same
  /// number, and when held_out is not in [0, 1).
  static TensorData read(const std::string& path, double held_out = 0.1);
  explicit TensorData(NamedTensors tensors, double held_out = 0.1);

  const NamedTensors& tensors() const { return tensors_; }
  int64_t rows() const { return training_ + evaluation_; }
  /// How many rows are for training; they come first.
  int64_t training_rows() const { return training_; }
  int64_t evaluation_rows() const { return evaluation_; }
  /// A number that is another one when the data is.
  uint64_t checksum() const;

 private:
  NamedTensors tensors_;
  int64_t training_ = 0;
  int64_t evaluation_ = 0;
};

/// Rows of some data in random order, without end: each time through has every row once. Which come
/// depends on the seed and on how many were drawn before.
class TensorRows {
 public:
  /// The rows from `first` on, `count` of them. ArgumentError for none.
  TensorRows(NamedTensors tensors, int64_t first, int64_t count, uint64_t seed);

  NamedTensors draw(int64_t rows);

  int64_t position() const { return position_; }
  void set_position(int64_t position);

 private:
  void start_pass(int64_t pass);

  NamedTensors tensors_;
  int64_t first_;
  int64_t count_;
  uint64_t seed_;
  int64_t position_ = 0;
  int64_t pass_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace stagecraft
