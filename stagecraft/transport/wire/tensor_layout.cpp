#include "stagecraft/transport/wire/tensor_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/dense.h"

namespace stagecraft::detail {
namespace {

// Bounds for damaged bytes. 2^48 bytes exceed any memory, and products up to that cannot overflow.
constexpr std::size_t kMaxDims = 256;
// Layouts come from peers. This limit keeps the product of their sizes within 64 bits.
constexpr int64_t kMaxBytes = int64_t{1} << 48U;

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// The view keeps the tensor's memory alive. A sent tensor is not written to.
at::Tensor view_bytes(const at::Tensor& tensor, std::size_t size) {
  const c10::Storage& storage = tensor.storage();
  const bool is_plain =
      tensor.device().is_cpu() && !c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
  if (is_plain) {
    // Built by hand: torch's operators take longer than a small message.
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        caffe2::TypeMeta::Make<uint8_t>());
    const auto* const begin = static_cast<const char*>(storage.data());
    view.unsafeGetTensorImpl()->set_storage_offset(
        static_cast<const char*>(tensor.const_data_ptr()) - begin);
    view.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(size)});
    return view;
  }
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), {static_cast<int64_t>(size)}, [tensor](void*) {},
      at::TensorOptions(at::kByte).device(tensor.device()), tensor.device());
}

bool exists(c10::Device device) {
  if (device.is_cpu()) return true;
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return false;
  return device.index() < c10::impl::VirtualGuardImpl(device.type()).deviceCount();
}

std::string describe_tensor(const at::Tensor& tensor) {
  return fmt::format("a tensor of shape [{}] that is sent", fmt::join(tensor.sizes(), ", "));
}

}  // namespace

TensorLayout TensorLayout::of(const at::Tensor& tensor) {
  TensorLayout layout;
  if (!tensor.defined()) return layout;
  const bool can_travel = tensor.layout() == c10::kStrided && !tensor.is_nested() &&
                          !tensor.is_quantized() && !tensor.is_meta();
  if (!can_travel) {
    throw ArgumentError(
        "sparse, nested, quantized and meta tensors cannot be sent to a different process");
  }
  // The history would be lost without a sign: the receiver's backward would end at this tensor.
  if (!tensor.is_leaf())
    throw ArgumentError(describe_tensor(tensor) + " has autograd history: detach it first");
  layout.dtype = tensor.scalar_type();
  layout.device = tensor.device();
  layout.requires_grad = tensor.requires_grad();
  layout.sizes = tensor.sizes().vec();
  layout.strides = tensor.strides().vec();
  layout.form = Form::kDense;
  if (tensor.is_non_overlapping_and_dense()) return layout;
  const at::NoGradGuard no_grad;
  const auto base = tensor.as_strided(layout.base_sizes(), layout.strides);
  if (!base.is_non_overlapping_and_dense()) layout.form = Form::kCopy;
  return layout;
}

std::vector<int64_t> TensorLayout::base_sizes() const {
  auto base = sizes;
  for (std::size_t i = 0; i < base.size(); ++i) {
    if (strides[i] == 0 && base[i] > 1) base[i] = 1;
  }
  return base;
}

std::size_t TensorLayout::num_bytes() const {
  if (form == Form::kUndefined) return 0;
  std::size_t count = c10::elementSize(dtype);
  for (const int64_t size : base_sizes()) count *= static_cast<std::size_t>(size);
  return count;
}

void TensorLayout::write(ByteWriter& out) const {
  out.put(form);
  if (form == Form::kUndefined) return;
  out.put(dtype);
  out.put(device.type());
  out.put(device.index());
  out.put(static_cast<uint8_t>(requires_grad));
  out.put(static_cast<uint8_t>(by_link));
  out.put(static_cast<uint16_t>(sizes.size()));
  out.put_raw(sizes.data(), sizes.size() * sizeof(int64_t));
  out.put_raw(strides.data(), strides.size() * sizeof(int64_t));
}

TensorLayout TensorLayout::read(ByteReader& in) {
  TensorLayout layout;
  layout.form = in.get<Form>();
  require<MetadataError>(layout.form <= Form::kCopy, "a message has a tensor of unknown form");
  if (layout.form == Form::kUndefined) return layout;
  layout.dtype = in.get<c10::ScalarType>();
  require<MetadataError>(
      static_cast<int>(layout.dtype) >= 0 && layout.dtype < c10::ScalarType::Undefined,
      "a message has a tensor of unknown dtype");
  const auto type = in.get<c10::DeviceType>();
  const auto index = in.get<c10::DeviceIndex>();
  require<MetadataError>(static_cast<int>(type) >= 0 &&
                             type < c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES && index >= -1,
                         "a message has a tensor of unknown device");
  // To c10, cpu and cpu:0 are unequal devices. Here they are the same.
  layout.device = c10::Device(type, type == c10::kCPU ? c10::DeviceIndex(-1) : index);
  layout.requires_grad = in.get<uint8_t>() != 0;
  layout.by_link = in.get<uint8_t>() != 0;
  require<MetadataError>(!layout.requires_grad || c10::isFloatingType(layout.dtype) ||
                             c10::isComplexType(layout.dtype),
                         "a message has an integer tensor that requires grad");
  const auto dims = in.get<uint16_t>();
  require<MetadataError>(dims <= kMaxDims, "a message has a tensor with {} dimensions", dims);
  int64_t bytes = static_cast<int64_t>(c10::elementSize(layout.dtype));
  for (int i = 0; i < dims; ++i) {
    layout.sizes.push_back(in.get<int64_t>());
    const int64_t size = layout.sizes.back();
    require<MetadataError>(size >= 0 && (size == 0 || bytes <= kMaxBytes / size),
                           "a message has a tensor with an impossible size");
    bytes *= std::max<int64_t>(size, 1);
  }
  for (int i = 0; i < dims; ++i) {
    layout.strides.push_back(in.get<int64_t>());
    require<MetadataError>(layout.strides.back() >= 0,
                           "a message has a tensor with a negative stride");
  }
  require<MetadataError>(
      layout.form != Form::kDense || is_dense(layout.base_sizes(), layout.strides),
      "a message has a dense tensor with gaps or overlaps");
  return layout;
}

at::Tensor bytes_of(const TensorLayout& layout, const at::Tensor& tensor) {
  const std::size_t size = layout.num_bytes();
  if (size == 0) return {};
  const at::NoGradGuard no_grad;
  at::Tensor base = tensor;
  if (!base.is_non_overlapping_and_dense()) {
    base = base.as_strided(layout.base_sizes(), base.strides());
  }
  // A lazily conjugated or negated tensor is resolved into a copy here. For an expanded tensor that
  // copy has different strides.
  if (base.is_conj() || base.is_neg()) base = base.resolve_conj().resolve_neg();
  if (layout.form == TensorLayout::Form::kCopy) base = base.contiguous();
  return view_bytes(base, size);
}

ArrivingTensor::ArrivingTensor(const TensorLayout& layout, std::optional<c10::Device> home)
    : layout_(&layout) {
  if (layout.form == TensorLayout::Form::kUndefined) return;
  if (exists(layout.device)) device_ = layout.device;
  // The sender's index is no guide: each process may call its own GPU number 0.
  if (home && home->type() == layout.device.type()) device_ = *home;
  base_sizes_ = layout.base_sizes();
  if (layout.by_link) return;
  const bool is_dense = layout.form == TensorLayout::Form::kDense;
  base_ = empty(c10::kCPU, is_dense ? layout.strides : contiguous_strides(base_sizes_));
  const std::size_t size = layout.num_bytes();
  if (size > 0) bytes_ = view_bytes(base_, size);
}

at::Tensor ArrivingTensor::empty(c10::Device device, const std::vector<int64_t>& strides) const {
  const at::NoGradGuard no_grad;
  // Memory that is copied to a device later is pinned.
  const bool is_pinned = device.is_cpu() && !device_.is_cpu() && layout_->num_bytes() > 0;
  if (device.is_cpu() && !is_pinned) {
    return at::detail::empty_strided_cpu(base_sizes_, strides, layout_->dtype);
  }
  return at::empty_strided(
      base_sizes_, strides,
      at::TensorOptions(layout_->dtype).device(device).pinned_memory(is_pinned));
}

void ArrivingTensor::allocate_for_link() {
  const bool is_dense = layout_->form == TensorLayout::Form::kDense;
  base_ = empty(device_, is_dense ? layout_->strides : contiguous_strides(base_sizes_));
  bytes_ = view_bytes(base_, layout_->num_bytes());
}

at::Tensor ArrivingTensor::finish() {
  if (!base_.defined()) return {};
  const at::NoGradGuard no_grad;
  at::Tensor tensor = std::move(base_);
  if (tensor.device() != device_ || layout_->form == TensorLayout::Form::kCopy) {
    // The strides must be those of the sender: they decide which kernels run later, and so the last
    // bits.
    auto copy = empty(device_, layout_->strides);
    copy.copy_(tensor, /*non_blocking=*/true);
    tensor = std::move(copy);
  }
  bytes_.reset();
  if (base_sizes_ != layout_->sizes) tensor = tensor.as_strided(layout_->sizes, layout_->strides);
  if (layout_->requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

}  // namespace stagecraft::detail
