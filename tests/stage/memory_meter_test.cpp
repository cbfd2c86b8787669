#include "stagecraft/stage/memory_meter.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(MemoryMeter, CountsTheBytesOfTensors) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  EXPECT_EQ(meter.current(0), 0);
  at::Tensor floats = at::empty({1000});
  EXPECT_EQ(meter.current(0), 4000);
  at::Tensor doubles = at::empty({3, 5}, at::kDouble);
  EXPECT_EQ(meter.current(0), 4120);
  floats.reset();
  EXPECT_EQ(meter.current(0), 120);
  doubles.reset();
  EXPECT_EQ(meter.current(0), 0);
  EXPECT_EQ(meter.peak(0), 4120);
}

TEST(MemoryMeter, ViewsAndEmptyTensorsCostNothing) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  at::Tensor base = at::empty({10, 10});
  const at::Tensor view = base.t().slice(0, 2, 4);
  const at::Tensor none = at::empty({0});
  EXPECT_EQ(meter.current(0), 400);
  base.reset();
  EXPECT_EQ(meter.current(0), 400) << "the view holds the memory";
}

TEST(MemoryMeter, ResizingCountsTheNewMemory) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  at::Tensor x = at::empty({10});
  x.resize_({100});
  EXPECT_EQ(meter.current(0), 400);
  EXPECT_EQ(meter.peak(0), 440) << "old and new live side by side";
}

TEST(MemoryMeter, ThePeakCanBeReset) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  const at::Tensor kept = at::empty({10});
  at::empty({1000});
  EXPECT_EQ(meter.peak(0), 4040);
  meter.reset_peak(0);
  EXPECT_EQ(meter.peak(0), 40);
  at::empty({100});
  EXPECT_EQ(meter.peak(0), 440);
}

TEST(MemoryMeter, TheInnermostScopeCounts) {
  MemoryMeter meter(2);
  const MemoryMeter::Scope outer(meter, 0);
  at::Tensor first = at::empty({10});
  at::Tensor second;
  {
    const MemoryMeter::Scope inner(meter, 1);
    second = at::empty({100});
    first.reset();
    EXPECT_EQ(meter.current(0), 0) << "freed under another account";
  }
  const at::Tensor third = at::empty({1});
  EXPECT_EQ(meter.current(0), 4);
  EXPECT_EQ(meter.current(1), 400);
  second.reset();
  EXPECT_EQ(meter.current(1), 0);
}

TEST(MemoryMeter, MetersNest) {
  MemoryMeter a(1);
  MemoryMeter b(2);
  const MemoryMeter::Scope in_a(a, 0);
  at::Tensor of_a = at::empty({10});
  at::Tensor of_b;
  {
    const MemoryMeter::Scope in_b(b, 0);
    const MemoryMeter::Scope in_b_again(b, 1);
    of_b = at::empty({100});
    EXPECT_EQ(a.current(0), 40);
    EXPECT_EQ(b.current(1), 400);
    of_a.reset();
    EXPECT_EQ(a.current(0), 0) << "a free goes to the meter that knows the block";
    of_b.reset();
    EXPECT_EQ(b.current(1), 0);
  }
}

TEST(MemoryMeter, BeforeAndAfterAScopeNothingCounts) {
  MemoryMeter meter(1);
  at::Tensor before = at::empty({10});
  try {
    const MemoryMeter::Scope scope(meter, 0);
    before.reset();
    throw std::out_of_range("in the scope");
  } catch (const std::out_of_range&) {
  }
  const at::Tensor after = at::empty({10});
  EXPECT_EQ(meter.current(0), 0);
  EXPECT_EQ(meter.peak(0), 0);
}

TEST(MemoryMeter, OtherThreadsAreNotHeardWithoutAScope) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  std::thread([] { at::empty({10}); }).join();
  EXPECT_EQ(meter.peak(0), 0);
}

TEST(MemoryMeter, ATensorIsHandedFromThreadToThread) {
  MemoryMeter meter(2);
  std::promise<at::Tensor> wire;
  std::thread sender([&] {
    const MemoryMeter::Scope scope(meter, 0);
    wire.set_value(at::empty({100}));
  });
  std::thread receiver([&] {
    const MemoryMeter::Scope scope(meter, 1);
    auto arrival = wire.get_future();
    ASSERT_EQ(arrival.wait_for(std::chrono::seconds(30)), std::future_status::ready);
    at::Tensor x = arrival.get();
    EXPECT_EQ(meter.current(0), 400);
    EXPECT_TRUE(meter.take_over(x.view({10, 10}), 1));
    EXPECT_EQ(meter.current(0), 0);
    EXPECT_EQ(meter.current(1), 400);
    EXPECT_EQ(meter.peak(1), 400);
    sender.join();
    wire = {};  // holds the tensor as well
    x.reset();
    EXPECT_EQ(meter.current(1), 0);
  });
  receiver.join();
  EXPECT_EQ(meter.current(0), 0);
  EXPECT_EQ(meter.peak(0), 400);
}

TEST(MemoryMeter, ABlockFreedUnseenStaysUntilForgotten) {
  MemoryMeter meter(1);
  at::Tensor x;
  at::Tensor y;
  {
    const MemoryMeter::Scope scope(meter, 0);
    x = at::empty({100});
    y = at::empty({1000});
  }
  EXPECT_TRUE(meter.forget(x));
  EXPECT_FALSE(meter.forget(x));
  EXPECT_FALSE(meter.take_over(x, 0));
  EXPECT_EQ(meter.current(0), 4000);
  x.reset();
  y.reset();
  EXPECT_EQ(meter.current(0), 4000) << "no thread with a scope saw the free";
}

TEST(MemoryMeter, AnAddressUsedAgainReplacesTheBlockFreedUnseen) {
  MemoryMeter meter(2);
  at::Tensor x;
  {
    const MemoryMeter::Scope scope(meter, 0);
    x = at::empty({100});
  }
  const auto report = [&](int64_t bytes) {
    c10::reportMemoryUsageToProfiler(x.storage().mutable_data(), bytes, 0, 0, c10::kCPU);
  };
  const MemoryMeter::Scope scope(meter, 1);
  report(80);
  EXPECT_EQ(meter.current(0), 0);
  EXPECT_EQ(meter.current(1), 80);
  report(-80);
  EXPECT_EQ(meter.current(1), 0);
}

TEST(MemoryMeter, OtherDevicesReportTheSameWay) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  int block = 0;
  int unknown = 0;
  const c10::Device gpu(c10::kCUDA, 1);
  c10::reportMemoryUsageToProfiler(&block, 512, 512, 2048, gpu);
  EXPECT_EQ(meter.current(0), 512);
  c10::reportMemoryUsageToProfiler(&unknown, -1024, 512, 2048, gpu);
  EXPECT_EQ(meter.current(0), 512) << "a block that was never seen";
  c10::reportMemoryUsageToProfiler(&block, -512, 0, 2048, gpu);
  EXPECT_EQ(meter.current(0), 0);
}

TEST(MemoryMeter, ForwardAndBackwardReturnToTheStart) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  {
    const at::Tensor w1 = at::randn({32, 16}).requires_grad_();
    const at::Tensor w2 = at::randn({8, 32}).requires_grad_();
    const at::Tensor x = at::randn({4, 16});
    const int64_t start = meter.current(0);
    EXPECT_EQ(start, 4 * (32 * 16 + 8 * 32 + 4 * 16));
    {
      at::Tensor loss = at::linear(at::relu(at::linear(x, w1)), w2).sum();
      EXPECT_GE(meter.current(0), start + 4 * 4 * 32) << "what the backward needs is alive";
      loss.backward();
    }
    EXPECT_EQ(meter.current(0), start + 4 * (32 * 16 + 8 * 32)) << "the gradients stay";
    EXPECT_GT(meter.peak(0), meter.current(0));
    w1.mutable_grad().reset();
    w2.mutable_grad().reset();
    EXPECT_EQ(meter.current(0), start);
  }
  EXPECT_EQ(meter.current(0), 0);
}

TEST(MemoryMeter, ThreadsCountSideBySide) {
  MemoryMeter meter(4);
  std::vector<at::Tensor> kept(4);
  std::vector<std::thread> threads;
  for (int account = 0; account < 4; ++account) {
    threads.emplace_back([&, account] {
      const MemoryMeter::Scope scope(meter, account);
      for (int i = 0; i < 1000; ++i) at::empty({64 + i});
      kept[static_cast<std::size_t>(account)] = at::empty({10 + account});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int account = 0; account < 4; ++account) {
    EXPECT_EQ(meter.current(account), 4 * (10 + account));
    EXPECT_EQ(meter.peak(account), 4 * 1063);
  }
  const MemoryMeter::Scope scope(meter, 0);
  kept.clear();
  for (int account = 0; account < 4; ++account) EXPECT_EQ(meter.current(account), 0);
}

TEST(MemoryMeter, TheScopeMayOutliveTheMeter) {
  auto meter = std::make_unique<MemoryMeter>(1);
  const MemoryMeter::Scope scope(*meter, 0);
  at::Tensor x = at::empty({10});
  meter.reset();
  x.reset();
  at::empty({10});
}

TEST(MemoryMeter, TorchSeesNoProfilerInIt) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
  EXPECT_EQ(torch::profiler::impl::profilerType(), torch::profiler::impl::ActiveProfilerType::NONE);
}

/// What a profiler of torch leaves in the thread's state.
struct Profiler final : torch::profiler::impl::ProfilerStateBase {
  Profiler()
      : ProfilerStateBase(
            torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::CPU)) {}
  void reportMemoryUsage(void*, int64_t, std::size_t, std::size_t, c10::Device) override {}
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::LEGACY;
  }
};

TEST(MemoryMeter, RefusesAProfilersThread) {
  MemoryMeter meter(1);
  const c10::DebugInfoGuard profiling(c10::DebugInfoKind::PROFILER_STATE,
                                      std::make_shared<Profiler>());
  EXPECT_ERROR(MemoryMeter::Scope(meter, 0), Error, "inside a torch profiler");
}

TEST(MemoryMeter, RefusesWhatDoesNotExist) {
  MemoryMeter meter(2);
  const at::Tensor x = at::ones({2});
  EXPECT_EQ(meter.accounts(), 2);
  EXPECT_ERROR(MemoryMeter(0), ArgumentError, "at least one account, got 0");
  EXPECT_ERROR(meter.current(2), ArgumentError, "expected one of 0 to 1, got 2");
  EXPECT_ERROR(meter.peak(-1), ArgumentError, "got -1");
  EXPECT_ERROR(meter.reset_peak(2), ArgumentError, "got 2");
  EXPECT_ERROR(meter.take_over(x, 2), ArgumentError, "got 2");
  EXPECT_ERROR(MemoryMeter::Scope(meter, 2), ArgumentError, "got 2");
  EXPECT_ERROR(meter.forget(at::Tensor()), ArgumentError, "undefined");
  const at::Tensor sparse = at::sparse_coo_tensor(at::ones({1, 2}, at::kLong), x, {4});
  EXPECT_ERROR(meter.forget(sparse), ArgumentError, "with storage");
}

}  // namespace
}  // namespace stagecraft
