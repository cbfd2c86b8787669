#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// A parameter or buffer of the unsplit model.
struct ModelState {
  std::string name;  ///< in the unsplit model
  bool is_parameter = true;
  StageId stage;  ///< the first stage that holds it
  /// One tensor for each stage that holds it, in the order of the stages. Several for a parameter
  /// that is shared by copies (SharedParameter::kReplicate) and for a buffer that several stages
  /// read.
  std::vector<at::Tensor> copies = {};
  /// For a replica's piece of a parameter (TrainerOptions::shard): the copies are the elements of
  /// the parameter from `begin` on, in the order of memory, in one dimension. The parameter has
  /// `dims` dimensions.
  int64_t begin = 0;
  std::optional<int64_t> dims = std::nullopt;

  const at::Tensor& tensor() const { return copies.front(); }
  int64_t num_dims() const { return dims.value_or(tensor().dim()); }
  bool is_trained() const { return is_parameter && tensor().requires_grad(); }
};

/// All parameters and persistent buffers, in the order of the unsplit model, which does not depend
/// on the split.
std::vector<ModelState> model_states(const Pipe& pipe);

}  // namespace stagecraft
