#include "stagecraft/transport/device/device_fence.h"

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/device/side_streams.h"

namespace stagecraft::detail {
namespace {

// As for all trees. A list that contains itself must be an error here, not a crash.
constexpr int kMaxDepth = 256;

template <typename Visit>
void visit_tensors(const c10::IValue& tree, const Visit& visit, int depth = 0) {
  require<ArgumentError>(depth <= kMaxDepth, "a sent value is nested deeper than {} levels",
                         kMaxDepth);
  if (tree.isTensor()) {
    const at::Tensor& tensor = tree.toTensor();
    if (tensor.defined()) visit(tensor);
  } else if (tree.isTuple()) {
    for (const auto& element : tree.toTupleRef().elements()) {
      visit_tensors(element, visit, depth + 1);
    }
  } else if (tree.isList()) {
    for (const auto& element : tree.toListRef()) visit_tensors(element, visit, depth + 1);
  } else if (tree.isGenericDict()) {
    for (const auto& entry : tree.toGenericDict()) visit_tensors(entry.value(), visit, depth + 1);
  }
}

}  // namespace

std::unique_ptr<DeviceFence> DeviceFence::record(const c10::IValue& tree) {
  std::unique_ptr<DeviceFence> fence;
  visit_tensors(tree, [&](const at::Tensor& tensor) {
    // Before the tensors of the CPU are left out: this check is for all tensors.
    require<ArgumentError>(tensor.is_leaf(),
                           "a sent tensor of shape [{}] has autograd history: detach it first",
                           fmt::join(tensor.sizes(), ", "));
    if (!has_streams(tensor.device())) return;
    if (!fence) fence = std::make_unique<DeviceFence>();
    // The producer's work is on its thread's current stream, so an event there comes after it.
    // Tensors of one stream share the event.
    const auto stream = current_stream(tensor.device());
    auto& marks = fence->marks_;
    const bool known = std::any_of(marks.begin(), marks.end(),
                                   [&](const Mark& mark) { return mark.stream == stream; });
    if (known) return;
    marks.push_back({stream, c10::Event(stream.device_type())});
    marks.back().event.record(stream);
  });
  return fence;
}

void DeviceFence::join(const c10::IValue& tree) const {
  std::vector<c10::Stream> crossed;
  for (const auto& mark : marks_) {
    const auto stream = current_stream(mark.stream.device());
    // Work on one stream runs in order.
    if (stream == mark.stream) continue;
    mark.event.block(stream);
    crossed.push_back(stream);
  }
  // The allocator knows only the stream on which memory was allocated. Without the record below it
  // would hand the memory out again when the last reference is dropped, although this stream may
  // still read it.
  if (crossed.empty()) return;
  visit_tensors(tree, [&](const at::Tensor& tensor) {
    if (!has_streams(tensor.device()) || !tensor.has_storage()) return;
    const auto stream = std::find_if(crossed.begin(), crossed.end(), [&](const c10::Stream& s) {
      return s.device() == tensor.device();
    });
    if (stream == crossed.end()) return;
    c10::impl::VirtualGuardImpl(stream->device_type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), *stream);
  });
}

}  // namespace stagecraft::detail
