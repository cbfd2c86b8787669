#include "stagecraft/transport/c10d/c10d_engine.h"

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/c10d/sigpipe.h"

namespace stagecraft::detail {
namespace {

// At its own time-out gloo closes all connections, so its waits have none: ours are interrupted.
constexpr auto kForEver = std::chrono::hours(24 * 365);

class C10dWork final : public Engine::Work {
 public:
  explicit C10dWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  bool wait() override { return work_->wait(kForEver); }
  void interrupt() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

template <typename Group>
class C10dEngine final : public Engine {
 public:
  explicit C10dEngine(c10::intrusive_ptr<Group> group) : group_(std::move(group)) {}

  Rank rank() const override { return Rank(group_->getRank()); }
  int32_t num_ranks() const override { return group_->getSize(); }

  WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) override {
    std::vector<at::Tensor> tensors = {bytes};
    const SigpipeGuard guard;
    const std::lock_guard lock(mutex_);
    return std::make_shared<C10dWork>(group_->send(tensors, to.value(), tag));
  }

  WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    std::vector<at::Tensor> tensors = {bytes};
    const SigpipeGuard guard;
    const std::lock_guard lock(mutex_);
    return std::make_shared<C10dWork>(group_->recv(tensors, from.value(), tag));
  }

 private:
  c10::intrusive_ptr<Group> group_;
  std::mutex mutex_;  ///< c10d counts what is posted without one
};

}  // namespace

std::unique_ptr<Engine> make_c10d_engine(const c10::intrusive_ptr<c10d::Backend>& group) {
  return std::make_unique<C10dEngine<c10d::Backend>>(group);
}

std::unique_ptr<Engine> make_c10d_engine(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  std::string name = "none";
  try {
    name = group->getBackend(c10::DeviceType::CPU)->getBackendName();
  } catch (const c10::Error&) {
    // It has none for the CPU.
  }
  if (name != "gloo") {
    throw ArgumentError(fmt::format(
        "a world needs a group whose backend for the CPU is gloo, this one's is {}", name));
  }
  return std::make_unique<C10dEngine<c10d::ProcessGroup>>(group);
}

}  // namespace stagecraft::detail
