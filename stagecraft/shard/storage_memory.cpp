#include "stagecraft/shard/storage_memory.h"

#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

// torch 2.11 cannot make accesses valid again after it was told to refuse them. There, released
// memory is null.
#define SC_TORCH_HAS_STORAGE_SWAP \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 12))

namespace stagecraft {

void release_memory(const at::Tensor& tensor, std::string message) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
#if SC_TORCH_HAS_STORAGE_SWAP
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
#else
  (void)message;
#endif
}

bool is_access_refused() {
  return SC_TORCH_HAS_STORAGE_SWAP;
}

void allocate_memory(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  c10::Allocator* const own = storage.allocator();
  c10::Allocator* const allocator =
      own != nullptr ? own : c10::GetAllocator(tensor.device().type());
#if SC_TORCH_HAS_STORAGE_SWAP
  // A swap with a new storage also ends the error of accesses.
  const auto memory = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      allocator->allocate(bytes), allocator, storage.resizable());
  storage.swap_data_ptr(*memory);
#else
  storage.set_data_ptr_noswap(allocator->allocate(bytes));
  storage.set_nbytes(bytes);
#endif
}

}  // namespace stagecraft
