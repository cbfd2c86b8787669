#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/transport/device/out_of_memory.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/tensor_layout.h"

namespace stagecraft::detail {

/// An encoded value: its layout, which probably repeats; its numbers and texts, which do not; and
/// the elements of its tensors.
struct EncodedValue {
  std::string layout;               ///< structure, and all of the tensors except elements
  std::string values;               ///< numbers and texts
  std::vector<at::Tensor> tensors;  ///< bytes of the tensors that have elements
  std::vector<bool> by_link;        ///< whether each goes over the device link
  std::vector<at::Tensor> sources;  ///< device tensors that are being copied to `tensors`
};

/// Encodes a value. Its tensors are not copied: those on the device `link` will go over the device
/// link, those of other devices through staging buffers (device/staging.h). ArgumentError for what
/// cannot be sent: tensors with history, opaque leaves and the like.
EncodedValue encode(const c10::IValue& value, std::optional<c10::Device> link = {});

/// The tensors of a value that is being received.
using ArrivingTensors = std::vector<ArrivingTensor>;

/// A decoded layout. MetadataError for invalid bytes, OutOfMemory without memory.
class ValueLayout {
 public:
  explicit ValueLayout(std::string_view bytes);

  /// A tensor that has elements.
  struct Part {
    std::size_t tensor = 0;  ///< position in ArrivingTensors
    std::size_t bytes = 0;
    Way way = Way::kFrame;
  };
  const std::vector<Part>& parts() const { return parts_; }
  bool uses_link() const { return uses_link_; }
  /// Allocates all tensors except those that travel over the device link (see ArrivingTensor). The
  /// layout must outlive them.
  ArrivingTensors allocate(std::optional<c10::Device> home = {}) const;
  /// Allocates the tensors that travel over the device link.
  void allocate_for_link(ArrivingTensors& tensors) const;
  /// Builds the value, after the tensors' elements have arrived.
  c10::IValue build(std::string_view values, ArrivingTensors tensors) const;

 private:
  std::vector<TensorLayout> tensors_;
  std::vector<Part> parts_;
  bool uses_link_ = false;
  std::string structure_;
};

}  // namespace stagecraft::detail
