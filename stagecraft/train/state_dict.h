#pragma once

#include <string>

#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// Writes the parameters and buffers of a model as Python's `torch.save(model.state_dict(), path)`
/// would: one dict, from the names that the model has for them (a tied weight under all of its
/// names) to tensors on the CPU.
///
///   model.load_state_dict(torch.load("trained.pt"))      # Python, weights_only or not
///
/// Buffers that are not part of what is saved are left out. The file appears when it is complete.
/// FileError when it cannot be written.
void save_state_dict(const Pipe& pipe, const std::string& path);

/// Reads such a file, or one that Python wrote with `torch.save(dict(model.state_dict()), path)`,
/// into the parameters and buffers of a pipe, all copies of shared ones too. MetadataError, before
/// anything is changed, when a name is missing, one is too many, or a shape or dtype is another;
/// FileError for a file that is none.
void load_state_dict(const Pipe& pipe, const std::string& path);

}  // namespace stagecraft
