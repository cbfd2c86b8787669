#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Releases the memory of a tensor, and of all tensors that share its storage. They keep their
/// shapes. An access to their elements throws an error of torch with this message. torch 2.11
/// cannot end such an error again: there the memory is null, and an access is invalid.
void release_memory(const at::Tensor& tensor, std::string message);

/// Whether an access to released memory throws: from torch 2.12 on.
bool is_access_refused();

/// Gives memory of that size to the storage of a tensor after `release_memory`. The elements are
/// undefined.
void allocate_memory(const at::Tensor& tensor, std::size_t bytes);

}  // namespace stagecraft
