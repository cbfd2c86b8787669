#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// Examples as named tensors: row 3 of each tensor belongs to example 3. The last share `held_out`
/// of the examples is for evaluation, the rest for training.
class TensorData {
 public:
  /// A file that Python wrote with torch.save({"pixel_values": x, "labels": y}, path). FileError if
  /// it is not such a file. ArgumentError if tensors have no rows or different numbers of rows, and
  /// if held_out is not in [0, 1).
  static TensorData read(const std::string& path, double held_out = 0.1);
  explicit TensorData(NamedTensors tensors, double held_out = 0.1);

  const NamedTensors& tensors() const { return tensors_; }
  int64_t rows() const { return training_ + evaluation_; }
  /// The rows for training. They come first.
  int64_t training_rows() const { return training_; }
  int64_t evaluation_rows() const { return evaluation_; }
  /// Differs for different data.
  uint64_t checksum() const;

 private:
  NamedTensors tensors_;
  int64_t training_ = 0;
  int64_t evaluation_ = 0;
};

/// An endless sequence of rows in random order. Each pass over the data has every row once. The
/// rows depend on the seed and on the number of rows drawn before.
class TensorRows {
 public:
  /// Uses `count` rows, beginning at `first`. ArgumentError if there is none.
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
