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
  // A swap with a new storage also ends the error of accesses; torch 2.11 has no other way to do
  // so.
  const auto memory = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      allocator->allocate(bytes), allocator, storage.resizable());
  storage.swap_data_ptr(*memory);
}

}  // namespace stagecraft
