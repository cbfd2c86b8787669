#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/tensor_layout.h"

namespace stagecraft::detail {

/// This rank has no memory for a value that has come, or its device fails.
class NoRoom : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value as it travels: what the next one of its kind is likely to have in common with it, what
/// not, and the elements of its tensors.
struct EncodedValue {
  std::string layout;               ///< structure, and all that is known of tensors but elements
  std::string values;               ///< numbers and texts
  std::vector<at::Tensor> tensors;  ///< their bytes, without those that have none
  std::vector<bool> by_link;        ///< which of these go over the device link
  std::vector<at::Tensor> sources;  ///< what they are being copied from
};

/// Tensors stay where they are: those on `link`, a device, are to go over the device link, others
/// are to be staged (staging.h). ArgumentError for what cannot be sent: tensors with history,
/// opaque leaves and the like.
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
  /// Memory for all of them but those that go over the link; see ArrivingTensor. This must outlive
  /// it.
  ArrivingTensors allocate(std::optional<c10::Device> home = {}) const;
  /// And for those.
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
