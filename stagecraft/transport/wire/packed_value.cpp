#include "stagecraft/transport/wire/packed_value.h"

#include <cstring>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/device_error.h"
#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {

std::size_t num_bytes(const EncodedValue& value) {
  std::size_t bytes = value.layout.size() + value.values.size();
  for (const auto& tensor : value.tensors) bytes += static_cast<std::size_t>(tensor.numel());
  return bytes;
}

std::string pack(const EncodedValue& value) {
  ByteWriter out;
  out.put_text(value.layout);
  out.put_text(value.values);
  for (const auto& tensor : value.tensors) {
    // Waits for the device. A collective waits anyway, and a small value does not need staging
    // buffers.
    const at::Tensor bytes = tensor.cpu();
    out.put_raw(bytes.const_data_ptr(), static_cast<std::size_t>(bytes.numel()));
  }
  return out.take();
}

c10::IValue unpack(std::string_view bytes) {
  ByteReader in(bytes);
  const ValueLayout layout(in.get_text());
  const auto values = in.get_text();
  // A collective's message passes through rank 0, so no link connects its two ends.
  require<MetadataError>(!layout.uses_link(),
                         "a message has a tensor for a device link, which is not available");
  std::size_t num_bytes = 0;
  for (const auto& part : layout.parts()) num_bytes += part.bytes;
  // Before the allocation: a damaged size must not look like a lack of memory.
  ByteReader elements(in.take(num_bytes));
  try {
    auto tensors = layout.allocate();
    for (const auto& tensor : tensors) {
      if (!tensor.bytes().defined()) continue;
      const auto size = static_cast<std::size_t>(tensor.bytes().numel());
      std::memcpy(tensor.bytes().mutable_data_ptr(), elements.take(size).data(), size);
    }
    return layout.build(values, std::move(tensors));
  } catch (const OutOfMemory& error) {
    // All ranks throw a MetadataError of a collective, so none tells the others of it. Only this
    // rank lacks memory.
    if (error.lacks_memory()) throw OutOfMemoryError(error.what(), /*asked=*/-1, /*free=*/-1);
    throw MetadataError(error.what());
  }
}

}  // namespace stagecraft::detail
