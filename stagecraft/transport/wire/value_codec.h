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

/// A value as it travels: what the next one of its kind is likely to have in common with it, what
/// not, and the elements of its tensors.
struct EncodedValue {
  std::string layout;               ///< structure, and all that is known of tensors but elements
  std::string values;               ///< numbers and texts
  std::vector<at::Tensor> tensors;  ///< their bytes, without those that have none
  std::vector<bool> by_link;        ///< which of these go over the device link
  std::vector<at::Tensor> sources;  ///< what they are being copied from
};

/// Encodes a value. Its tensors are not copied: those on the device `link` will go over the device
/// link, those of other devices through staging buffers (device/staging.h). ArgumentError for what
/// cannot be sent: tensors with history, opaque leaves and the like.
EncodedValue encode(const c10::IValue& value, std::optional<c10::Device> link = {});

/// What arrives of a value besides its numbers and texts.
using ArrivingTensors = std::vector<ArrivingTensor>;

/// The layout of encoded values, read. MetadataError for bytes that are none, and where there is no
/// memory.
class ValueLayout {
 public:
  explicit ValueLayout(std::string_view bytes);

  /// A tensor that has elements.
  struct Part {
    std::size_t tensor = 0;  ///< which of ArrivingTensors
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
  /// The value; the tensors' elements are there.
  c10::IValue build(std::string_view values, ArrivingTensors tensors) const;

 private:
  std::vector<TensorLayout> tensors_;
  std::vector<Part> parts_;
  bool uses_link_ = false;
  std::string structure_;
};

}  // namespace stagecraft::detail
