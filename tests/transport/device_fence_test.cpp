// A device that only writes down what it is asked to do.

#include "stagecraft/transport/device/device_fence.h"

#include <array>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using detail::DeviceFence;

thread_local c10::StreamId current_stream_id = 0;
std::vector<std::string> diary;

class PaperDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return device(0); }
  c10::Device getDevice() const override { return device(0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream_id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static std::array<int, 100> events{};
    static std::size_t next = 0;
    *event = &events.at(next++);
    diary.push_back(fmt::format("record on {}.{}", stream.device_index(), stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    EXPECT_NE(event, nullptr);
    diary.push_back(fmt::format("block {}.{}", stream.device_index(), stream.id()));
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    diary.push_back(fmt::format("keep {} for {}.{}", *static_cast<const int*>(data.get()),
                                stream.device_index(), stream.id()));
  }

  static c10::Device device(c10::DeviceIndex index) {
    return c10::Device(c10::DeviceType::PrivateUse1, index);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, PaperDevice)

// A tensor on the device, known by a number.
at::Tensor on_device(c10::DeviceIndex index, int& number) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(int),
                       c10::DataPtr(&number, PaperDevice::device(index)));
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(at::kInt));
}

void join_on_stream(const DeviceFence& fence, const c10::IValue& value, c10::StreamId stream) {
  std::thread([&] {
    current_stream_id = stream;
    fence.join(value);
  }).join();
}

TEST(DeviceFence, IsNothingWithoutADevice) {
  EXPECT_EQ(DeviceFence::record(c10::IValue()), nullptr);
  EXPECT_EQ(DeviceFence::record(at::ones({2})), nullptr);
  EXPECT_EQ(DeviceFence::record(at::Tensor()), nullptr);
  EXPECT_EQ(DeviceFence::record(at::empty({2}, at::kMeta)), nullptr);
}

TEST(DeviceFence, MakesTheOtherStreamWaitAndKeepsTheMemory) {
  diary.clear();
  int seven = 7;
  int eight = 8;
  int nine = 9;
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("mask", on_device(1, nine));
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(on_device(0, eight));
  const c10::IValue value =
      c10::ivalue::Tuple::create(on_device(0, seven), at::ones({1}), list, dict);
  const auto fence = DeviceFence::record(value);
  ASSERT_NE(fence, nullptr);
  EXPECT_THAT(diary, testing::ElementsAre("record on 0.0", "record on 1.0"));
  diary.clear();
  join_on_stream(*fence, value, 3);
  EXPECT_THAT(diary, testing::ElementsAre("block 0.3", "block 1.3", "keep 7 for 0.3",
                                          "keep 8 for 0.3", "keep 9 for 1.3"));
}

TEST(DeviceFence, AsksNothingOfTheSameStream) {
  int seven = 7;
  const c10::IValue value = on_device(0, seven);
  const auto fence = DeviceFence::record(value);
  diary.clear();
  join_on_stream(*fence, value, 0);
  EXPECT_THAT(diary, testing::IsEmpty());
}

TEST(DeviceFence, RefusesHistoryAndEndlessValues) {
  const auto product = at::ones({2, 3}).requires_grad_().mul(2);
  EXPECT_ERROR(DeviceFence::record(product), ArgumentError,
               "a sent tensor of shape [2, 3] has autograd history: detach it first");
  EXPECT_NO_THROW(DeviceFence::record(product.detach().requires_grad_()));
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  EXPECT_ERROR(DeviceFence::record(list), ArgumentError, "is nested deeper than 256 levels");
  list.clear();
}

}  // namespace
}  // namespace stagecraft
