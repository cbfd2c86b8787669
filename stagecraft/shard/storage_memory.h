#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// Releases the memory of a tensor, and of all tensors that share its storage. They keep their
/// shapes; an access to their elements throws an error of torch with this message.
void release_memory(const at::Tensor& tensor, std::string message);

/// Gives a storage that was released memory of that size. Its elements are undefined.
void allocate_memory(const at::Tensor& tensor, std::size_t bytes);

}  // namespace stagecraft
