#pragma once

#include <map>
#include <string>

#include "stagecraft/train/durable_file.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft::detail {

/// Named tensors in sections: {"model": {"blocks.0.qkv.weight": ...}, "average": {...}}.
using StateSections = std::map<std::string, NamedTensors>;

/// Writes them as a dict of dicts, in torch's own format: torch::pickle_load and Python's
/// torch.load(weights_only=True) read it. Tensors are not copied. FileError if it cannot be
/// written.
FileSeal write_state_file(const std::string& path, const StateSections& sections);

/// Reads such a file. Tensors are on the CPU. FileError if it is not such a file.
StateSections read_state_file(const std::string& path);

/// The same for one dict of tensors.
FileSeal write_tensor_file(const std::string& path, const NamedTensors& tensors);
NamedTensors read_tensor_file(const std::string& path);

}  // namespace stagecraft::detail
