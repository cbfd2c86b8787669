#pragma once

#include <string>

#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// Writes the parameters and buffers of a model as Python's `torch.save(model.state_dict(), path)`
/// would: one dict from names to tensors on the CPU. A tied weight occurs under all of its names.
///
///   model.load_state_dict(torch.load("trained.pt"))      # Python, weights_only or not
///
/// Buffers that are not persistent are left out. The file appears when it is complete. FileError if
/// it cannot be written.
void save_state_dict(const Pipe& pipe, const std::string& path);

/// Reads such a file, or one that Python wrote with `torch.save(dict(model.state_dict()), path)`,
/// into the parameters and buffers of a pipe, including all copies of shared ones. MetadataError,
/// before anything is changed, if a name is missing or unknown, or if a shape or dtype differs;
/// FileError if it is not such a file.
void load_state_dict(const Pipe& pipe, const std::string& path);

}  // namespace stagecraft
