// Pipelines whose ranks are processes and whose stages are on a GPU: the same bits as over threads,
// and errors that name who is gone.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/transport/device/side_streams.h"
#include "stagecraft/transport/nccl/connect_nccl.h"
#include "stagecraft/transport/nccl/join_nccl.h"
#include "stagecraft/transport/nccl/nccl_library.h"
#include "tests/gpu/cuda_values.h"
#include "tests/runtime/harness.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/nccl_ranks.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Body = std::function<void(Transport&)>;

const c10::Device kGpu(c10::kCUDA, 0);
constexpr int64_t kWidth = 160;  // above what travels inside a frame

enum class Way { kGloo, kFakeNccl, kNccl };

class DeviceProcesses : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (has_gpu()) {
      GetParam() == Way::kNccl ? use_real_nccl() : use_fake_nccl();
      return;
    }
    if (std::getenv("STAGECRAFT_REQUIRE_GPU") != nullptr) FAIL() << "there is no CUDA device";
    GTEST_SKIP() << "there is no CUDA device";
  }

  static std::vector<ProcessEnd> run(int32_t ranks, const Body& body) {
    return GetParam() == Way::kGloo ? run_gloo_ranks(ranks, {}, body)
                                    : run_nccl_ranks(ranks, kGpu, {}, body);
  }
  static std::unique_ptr<Transport> join(const JoinOptions& options) {
    setenv("NCCL_HOSTID", ("rank" + std::to_string(options.rank.value())).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    return GetParam() == Way::kGloo ? join_gloo(options) : detail::connect_nccl(options, kGpu);
  }
};

INSTANTIATE_TEST_SUITE_P(, DeviceProcesses, testing::Values(Way::kGloo, Way::kFakeNccl, Way::kNccl),
                         [](const auto& tested) -> std::string {
                           if (tested.param == Way::kGloo) return "gloo";
                           return tested.param == Way::kNccl ? "nccl" : "fake_nccl";
                         });

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

TransferId values(int32_t microbatch) {
  return {0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

TestModel gpu_model(int32_t stages) {
  TestModel model;
  for (int32_t s = 0; s < stages; ++s) {
    const auto weight = moved(random_parameter({kWidth, kWidth}, static_cast<uint64_t>(s)), kGpu);
    model.bodies.push_back(
        stage_body([weight](const at::Tensor& x) { return at::tanh(at::linear(x, weight)); },
                   {{"weight", weight}}));
    model.options.push_back({.device = kGpu});
  }
  model.ports = Ports(stages);
  model.loss = [](const at::Tensor& y, const at::Tensor& t) {
    return at::mse_loss(y, t.to(y.device()));
  };
  return model;
}

struct Outcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;
};

// Steps of different sizes: small tensors and large ones. One size comes back, so that its actions
// are captured.
Outcome train(Runner& runner, const ScheduleCase& shape, const TestModel& model, Rank rank) {
  const auto source = shape.source();
  Outcome outcome;
  for (const int32_t rows : {3, 150, 200, 150, 150, 150}) {
    const auto batch = random_batch(shape.microbatches, int64_t{rows} * shape.microbatches, kWidth,
                                    static_cast<uint64_t>(rows));
    const auto result =
        runner.step(part_of(batch, source.placement(), rank), {.microbatches = shape.microbatches});
    for (const auto& loss : result.losses) outcome.losses.push_back(loss);
  }
  for (const auto& parameter : parameters_of(model.bodies)) {
    const bool is_own = source.placement().get_rank(parameter.stage) == rank;
    if (is_own) outcome.grads.push_back(parameter.tensor.grad());
  }
  return outcome;
}

TEST_P(DeviceProcesses, BitsAreThoseOfThreads) {
  if (GetParam() == Way::kFakeNccl) {
    GTEST_SKIP() << "the fake's streams stand still, and CUDA may wait for them in the middle of a "
                    "step; NCCL itself is tested";
  }
  for (const auto& shape : {ScheduleCase{"1F1B", 2, 1, 6}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4},
                            ScheduleCase{"Interleaved1F1B", 3, 2, 6}, ScheduleCase{"1F1B", 4, 1, 8},
                            ScheduleCase{"DualPipeV", 2, 2, 6}}) {
    SCOPED_TRACE(to_string(shape));
    const auto source = shape.source();
    const auto ends = run(shape.ranks, [&](Transport& transport) {
      const auto here = gpu_model(shape.stages());
      const auto there = gpu_model(shape.stages());
      const Rank rank = transport.rank();
      PipelineOptions options = {.source = source, .timeout = std::chrono::seconds(30), .seed = 7};
      // Over NCCL graphs must be asked for.
      if (GetParam() == Way::kNccl) options.graphs = GraphMode::kOn;
      Outcome over_processes;
      {
        Runner runner(transport, stages_on(here, source.placement(), rank),
                      runner_options(here, options));
        over_processes = train(runner, shape, here, rank);
        const LaunchCounts launches = runner.launches();
        EXPECT_EQ(launches.replayed, 2) << launches.reason;
      }
      Outcome over_threads;
      PipelineOptions without_graphs = options;
      without_graphs.graphs = GraphMode::kOff;
      run_spmd(source, there, without_graphs, [&](Runner& other, Transport& local) {
        auto outcome = train(other, shape, there, local.rank());
        if (local.rank() == rank) over_threads = std::move(outcome);
      });
      EXPECT_FALSE(over_processes.grads.empty());
      EXPECT_EQ(difference("losses", over_processes.losses, over_threads.losses), "");
      EXPECT_EQ(difference("gradients", over_processes.grads, over_threads.grads), "");
      transport.barrier(soon());
    });
    for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

// The device is busy with what is sent while post_send returns, and with what is received while the
// receiver goes on.
TEST_P(DeviceProcesses, NothingIsSentBeforeItIsMadeAndNothingReadBeforeItIsThere) {
  const auto ends = run(2, [&](Transport& transport) {
    const Rank other(1 - transport.rank().value());
    for (int32_t i = 0; i < 20; ++i) {
      auto x = at::full({1 << 20}, 1.0, at::TensorOptions(kGpu));
      auto work = at::ones({2048, 2048}, at::TensorOptions(kGpu));
      for (int k = 0; k < 20; ++k) work = work.mm(work).mul_(1e-4);
      for (int k = 0; k < 10; ++k) x = x * 1.0 + work.view(-1).narrow(0, 0, 1 << 20) * 0 + i;
      const auto send = transport.post_send(other, values(i), x);
      const auto received =
          transport.wait_receive(transport.post_receive(other, values(i)), soon());
      EXPECT_TRUE(at::equal(received.value.toTensor(),
                            at::full({1 << 20}, 1.0 + 10 * i, at::TensorOptions(kGpu))));
      transport.wait_send(send, soon());
    }
    transport.barrier(soon());
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST_P(DeviceProcesses, AKilledRankIsNamedOnEveryOther) {
  for (int32_t victim = 0; victim < 3; ++victim) {
    const GlooRanks world(3);
    Processes processes(3, [&](int32_t i) {
      const auto end = join(world.options(i));
      end->barrier(soon());
      Processes::tell_parent();
      const Rank next((i + 1) % 3);
      const Rank last((i + 2) % 3);
      for (int32_t k = 0;; ++k) {
        const auto x = at::ones({1 << 22}, at::TensorOptions(kGpu)) * k;
        const auto send = end->post_send(next, values(k), x);
        const auto got = end->wait_receive(end->post_receive(last, values(k)), soon()).value;
        got.toTensor()[7].item();  // waits for the device; in an aborted world, for no value
        end->wait_send(send, soon());
      }
    });
    for (int32_t i = 0; i < 3; ++i) processes.wait_for_word(i);
    usleep(300'000);
    processes.signal(victim, SIGKILL);
    const auto struck = Clock::now();
    const auto ends = processes.wait({victim});
    std::printf("rank %d killed: the others ended after %.2f s\n", victim,
                std::chrono::duration<double>(Clock::now() - struck).count());
    EXPECT_LT(Clock::now() - struck, std::chrono::seconds(8));
    for (int32_t i = 0; i < 3; ++i) {
      if (i == victim) continue;
      const auto& end = ends[static_cast<std::size_t>(i)];
      EXPECT_EQ(end.type, "PeerError") << end.message;
      EXPECT_THAT(end.message, HasSubstr("rank " + std::to_string(victim)));
    }
  }
}

TEST_P(DeviceProcesses, BehindABarrierTheDeviceHasAllThatWasReceived) {
  setenv("SC_FAKE_NCCL", "slow", 1);
  const auto ends = run(2, [&](Transport& transport) {
    if (transport.rank() == Rank(0)) {
      transport.post_send(Rank(1), values(0), at::full({1 << 16}, 3, at::TensorOptions(kGpu)));
      transport.barrier(soon());
      transport.barrier(soon());
      return;
    }
    const auto got = transport.wait_receive(transport.post_receive(Rank(0), values(0)), soon());
    c10::Event behind(c10::kCUDA);
    behind.record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kGpu));
    transport.barrier(soon());
    // The fake takes longer than this to bring it.
    for (int turn = 0; turn < 100 && !behind.query(); ++turn) usleep(1000);
    EXPECT_TRUE(behind.query());
    EXPECT_EQ(got.value.toTensor()[7].item().toInt(), 3);
    transport.barrier(soon());
  });
  unsetenv("SC_FAKE_NCCL");
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST_P(DeviceProcesses, RecoversWithValuesUnderWay) {
  const auto ends = run(2, [&](Transport& transport) {
    const auto me = transport.rank().value();
    const Rank other(1 - me);
    for (int32_t round = 0; round < 3; ++round) {
      std::vector<PendingPtr> sends;
      for (int32_t i = 0; i < 4; ++i) {
        try {
          const auto x = at::full({1 << 20}, round, at::TensorOptions(kGpu));
          sends.push_back(transport.post_send(other, values(i), x));
        } catch (const PeerError&) {
          // The other one was faster.
        }
      }
      if (me == round % 2) transport.abort({Rank(me), "that is it"});
      transport.recover(soon());
      const auto receive = transport.post_receive(other, values(0));
      const auto x = at::full({1000}, 100 + round, at::TensorOptions(kGpu));
      const auto send = transport.post_send(other, values(0), x);
      EXPECT_TRUE(at::equal(transport.wait_receive(receive, soon()).value.toTensor(), x));
      transport.wait_send(send, soon());
      transport.barrier(soon());
    }
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

// To be read, not judged: there and back again.
TEST_P(DeviceProcesses, DISABLED_PingPong) {
  run(2, [&](Transport& transport) {
    const Rank other(1 - transport.rank().value());
    for (const int64_t bytes : {1 << 10, 1 << 20, 64 << 20}) {
      const auto x = at::ones({bytes / 4}, at::TensorOptions(kGpu));
      const auto turn = [&](int32_t i) {
        const auto receive = transport.post_receive(other, values(i));
        PendingPtr send;
        if (transport.rank().value() == 0) send = transport.post_send(other, values(i), x);
        const auto got = transport.wait_receive(receive, soon()).value;
        if (transport.rank().value() == 1) send = transport.post_send(other, values(i), got);
        transport.wait_send(send, soon());
      };
      for (int32_t i = 0; i < 20; ++i) turn(i);
      const auto begin = Clock::now();
      constexpr int32_t kTurns = 100;
      for (int32_t i = 0; i < kTurns; ++i) turn(100 + i);
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      if (transport.rank().value() == 0) {
        std::printf("%9ld bytes: %8.1f us one way\n", static_cast<long>(bytes), us / kTurns / 2);
      }
    }
  });
}

class RealNccl : public DeviceProcesses {};
INSTANTIATE_TEST_SUITE_P(, RealNccl, testing::Values(Way::kNccl),
                         [](const auto&) { return "nccl"; });

// The declarations are NCCL's: a communicator of one rank sends to itself.
TEST_P(RealNccl, ARankSendsToItself) {
  Processes processes(1, [&](int32_t) {
    const auto library = detail::NcclLibrary::load();
    std::printf("NCCL %s\n", library->version().c_str());
    detail::NcclLibrary::UniqueId id{};
    ASSERT_EQ(library->get_unique_id(&id), 0);
    const auto x = at::arange(1 << 20, at::TensorOptions(kGpu).dtype(at::kFloat));
    const auto y = at::empty_like(x);
    detail::NcclLibrary::Comm comm = nullptr;
    ASSERT_EQ(library->comm_init_rank(&comm, 1, id, 0), 0);
    void* const stream = detail::current_stream(kGpu).native_handle();
    // A send to oneself needs a group. torch has loaded NCCL already.
    const auto group_start = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "ncclGroupStart"));
    const auto group_end = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "ncclGroupEnd"));
    ASSERT_TRUE(group_start != nullptr && group_end != nullptr);
    ASSERT_EQ(group_start(), 0);
    ASSERT_EQ(library->send(x.const_data_ptr(), x.nbytes(), 1, 0, comm, stream), 0);
    ASSERT_EQ(library->receive(y.mutable_data_ptr(), y.nbytes(), 1, 0, comm, stream), 0);
    ASSERT_EQ(group_end(), 0);
    EXPECT_TRUE(at::equal(x, y));
    int error = -1;
    EXPECT_EQ(library->comm_get_async_error(comm, &error), 0);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(library->comm_destroy(comm), 0);
    EXPECT_THAT(library->describe(5), HasSubstr("usage"));
  });
  judge_ends(processes.wait());
}

// NCCL refuses two ranks on one GPU of one machine, and says so, when the first value is sent.
TEST_P(RealNccl, TwoRanksOnOneGpuAreRefusedInItsOwnWords) {
  const GlooRanks world(2);
  Processes processes(2, [&](int32_t i) {
    const auto transport = join_nccl(world.options(i));
    const Rank other(1 - i);
    const auto receive = transport->post_receive(other, values(0));
    const auto send = transport->post_send(other, values(0), at::ones({8}, kGpu));
    transport->wait_receive(receive, soon());
    transport->wait_send(send, soon());
  });
  const auto ends = processes.wait();
  for (const auto& end : ends) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kThrew);
    EXPECT_THAT(end.message, HasSubstr("ncclCommInitRank")) << end.type;
  }
}

}  // namespace
}  // namespace stagecraft
