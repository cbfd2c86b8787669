#include "stagecraft/shard/storage_memory.h"

#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace stagecraft {

void release_memory(const at::Tensor& tensor, std::string message) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

void allocate_memory(const at::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  c10::Allocator* const own = storage.allocator();
  c10::Allocator* const allocator =
      own != nullptr ? own : c10::GetAllocator(tensor.device().type());
  storage.set_data_ptr_noswap(allocator->allocate(bytes));
  storage.set_nbytes(bytes);
  storage.clear_data_ptr_access_error_msg_();
}

}  // namespace stagecraft
