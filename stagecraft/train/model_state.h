#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// A parameter or buffer of the model as it was before it was cut.
struct ModelState {
  std::string name;  ///< in the uncut model
  bool is_parameter = true;
  StageId stage;  ///< the first that holds it
  /// One for each stage that holds it, in the order of the stages: several for a parameter that is
  /// shared by copies (SharedParameter::kReplicate) and for buffers that several stages read.
  std::vector<at::Tensor> copies = {};

  const at::Tensor& tensor() const { return copies.front(); }
  bool is_trained() const { return is_parameter && tensor().requires_grad(); }
};

/// All parameters and buffers that are part of what is saved, in the order of the uncut model,
/// which does not depend on the cut.
std::vector<ModelState> model_states(const Pipe& pipe);

}  // namespace stagecraft
