#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tests/support/test_model.h"

namespace stagecraft {

/// A shape of model for any number of stages. All take [rows, 5]; sizes inside are odd, so that no
/// kernel finds its favourite block.
struct ModelShape {
  std::string_view name;
  int32_t min_stages = 1;
  TestModel (*make)(int32_t stages);
  /// Against the uncut model; 0 where no sum is regrouped.
  double uncut_tolerance = 0;
  /// The pipeline cuts the batch itself, into parts of different sizes.
  bool is_uneven = false;
};

std::span<const ModelShape> model_shapes();

/// [rows, 5] and the targets, [rows, 3], of microbatch m; the same in every call.
at::Tensor input_of(int32_t m, int64_t rows);
at::Tensor target_of(int32_t m, int64_t rows);

}  // namespace stagecraft
