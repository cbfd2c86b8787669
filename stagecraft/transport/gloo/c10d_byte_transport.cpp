#include "stagecraft/transport/gloo/c10d_byte_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/transport/gloo/sigpipe.h"

namespace stagecraft::detail {
namespace {

// A gloo timeout closes every connection, so its waits have none; we interrupt them.
constexpr auto kForEver = std::chrono::hours(24 * 365);

class GlooWork final : public Work {
 public:
  // The works of c10d's gloo group hold their tensor themselves.
  GlooWork(c10::intrusive_ptr<c10d::Work> work, const at::Tensor& /*bytes*/)
      : work_(std::move(work)) {}

  bool wait() override { return work_->wait(kForEver); }
  void interrupt() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// Keeps the work and its bytes until the process ends.
void leak(c10::intrusive_ptr<c10d::Work> work, at::Tensor bytes) {
  static std::mutex mutex;
  static auto* const leaked =
      new std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, at::Tensor>>;
  const std::lock_guard lock(mutex);
  leaked->emplace_back(std::move(work), std::move(bytes));
}

// For backends other than gloo: their waits may not be interruptible, so they are polled.
class PolledWork final : public Work {
 public:
  PolledWork(c10::intrusive_ptr<c10d::Work> work, at::Tensor bytes)
      : work_(std::move(work)), bytes_(std::move(bytes)) {}
  // The backend may still write to a pending buffer, and may not survive destruction of pending
  // work. Leak both.
  ~PolledWork() override {
    if (work_->isCompleted()) return;
    leak(std::move(work_), std::move(bytes_));
  }

  bool wait() override {
    for (auto pause = kShortestPause; !work_->isCompleted();
         pause = std::min(2 * pause, kLongestPause)) {
      if (is_interrupted_.exchange(false)) return false;
      std::this_thread::sleep_for(pause);
    }
    // The work is complete. This call throws its error, if there is one.
    return work_->wait();
  }
  void interrupt() override { is_interrupted_ = true; }

 private:
  // The pauses double, so a message is noticed late by at most the time that it has taken, and
  // never by more than 500 µs. That is at most 2000 looks a second for each waiting thread.
  static constexpr std::chrono::microseconds kShortestPause{10};
  static constexpr std::chrono::microseconds kLongestPause{500};
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor bytes_;
  std::atomic<bool> is_interrupted_{false};
};

template <typename Group, typename GroupWork>
class C10dByteTransport final : public ByteTransport {
 public:
  explicit C10dByteTransport(c10::intrusive_ptr<Group> group)
      : group_(std::move(group)), mutexes_(group_->getSize()) {}

  Rank rank() const override { return Rank(group_->getRank()); }
  int32_t num_ranks() const override { return group_->getSize(); }

  // gloo copies into the connection's buffer, which may be megabytes.
  bool copies_in_send() const override { return true; }

  WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) override {
    std::vector<at::Tensor> tensors = {bytes};
    const SigpipeGuard guard;
    const std::lock_guard lock(mutex_of(to));
    return std::make_shared<GroupWork>(group_->send(tensors, to.value(), tag), bytes);
  }

  WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    std::vector<at::Tensor> tensors = {bytes};
    const SigpipeGuard guard;
    const std::lock_guard lock(mutex_of(from));
    return std::make_shared<GroupWork>(group_->recv(tensors, from.value(), tag), bytes);
  }

 private:
  std::mutex& mutex_of(Rank other) { return mutexes_[other]; }

  c10::intrusive_ptr<Group> group_;
  /// One for each peer, as gloo has one for each connection: a copy to one peer does not delay the
  /// others.
  IndexedVector<Rank, std::mutex> mutexes_;
};

}  // namespace

std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::Backend>& group) {
  return std::make_unique<C10dByteTransport<c10d::Backend, GlooWork>>(group);
}

std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  std::string name;
  try {
    name = group->getBackend(c10::DeviceType::CPU)->getBackendName();
  } catch (const c10::Error&) {
    throw ArgumentError("expected a c10d group with a backend for the CPU, got one without");
  }
  if (name == "gloo")
    return std::make_unique<C10dByteTransport<c10d::ProcessGroup, GlooWork>>(group);
  return std::make_unique<C10dByteTransport<c10d::ProcessGroup, PolledWork>>(group);
}

}  // namespace stagecraft::detail
