#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

namespace stagecraft::detail {

using Values = std::vector<c10::IValue>;

/// The values with new tensors on `device` that have the same elements. For graphs, which read and
/// write the same memory in every replay.
Values static_copies(const Values& values, c10::Device device);

Values clones(const Values& values);
std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors);

/// Whether all leaves are tensors or None.
bool are_tensors(const Values& values);

/// Copies tensors to the memory that a graph reads. Everything else must be as it was captured
/// (MetadataError).
void copy_values(const Values& from, const Values& to);

}  // namespace stagecraft::detail
