#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/transport.h"
#include "tests/support/test_model.h"

/// Things that go wrong on purpose, and what is left when they have.
namespace stagecraft {

/// An exception that only a test throws.
class Boom : public std::runtime_error {
 public:
  Boom() : std::runtime_error("boom") {}
};

/// Whether the exception is, or begins with, one of that type.
template <typename E>
bool is_a(const std::exception_ptr& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}
/// Of a std::exception; empty for anything else.
std::string message_of(const std::exception_ptr& thrown);

/// What `call` throws; null when it returns.
std::exception_ptr thrown_by(const std::function<void()>& call);
/// The StageError in it: itself, or the cause of a PeerError; none otherwise.
std::optional<StageError> find_stage_error(const std::exception_ptr& thrown);

/// Where one looks into the stages of a model. Used by several threads at once.
class Probe {
 public:
  using Function = std::function<void(StageId stage, MicrobatchId microbatch, at::Tensor& output)>;

  /// Called in every forward, after the computation.
  void set(Function function);
  void call(StageId stage, MicrobatchId microbatch, at::Tensor& output);

  /// Storages of outputs that stages made since the last call and that are still there.
  std::size_t take_num_alive();

 private:
  std::mutex mutex_;
  Function function_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
};

/// Makes all stages call the probe; their outputs must be tensors.
void add_probe(TestModel& model, const std::shared_ptr<Probe>& probe);
/// A chain whose stages call the probe.
TestModel probed_chain(int32_t stages, const std::shared_ptr<Probe>& probe, uint64_t seed = 0);

/// The threads of this process.
std::size_t num_threads();

/// Passes all calls on to a transport, which must outlive it. Fails when a test asks for it.
class FaultyTransport : public Transport {
 public:
  enum class Call : uint8_t { kPostSend, kPostReceive, kWaitSend, kWaitReceive, kAllGather };

  explicit FaultyTransport(Transport& inner) : inner_(inner) {}

  /// The n-th such call from now on, n >= 0, throws Boom, or what `how` throws, once.
  void fail(
      Call call, int n, std::function<void()> how = [] { throw Boom(); }) {
    failing_ = call;
    countdown_ = n;
    how_ = std::move(how);
  }
  /// Calls of that kind since the start.
  int count(Call call) const { return counts_[static_cast<std::size_t>(call)]; }
  /// Changes what receives bring.
  void alter(std::function<void(const TransferId& id, c10::IValue& value)> alter) {
    alter_ = std::move(alter);
  }

  Rank rank() const override { return inner_.rank(); }
  int32_t num_ranks() const override { return inner_.num_ranks(); }
  PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override;
  PendingPtr post_receive(Rank from, const TransferId& id) override;
  void wait_send(const PendingPtr& send, Deadline deadline) override;
  Received wait_receive(const PendingPtr& receive, Deadline deadline) override;
  void barrier(Deadline deadline) override { inner_.barrier(deadline); }
  c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) override;
  at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) override;
  std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) override;
  void abort(AbortReason reason) override;
  std::shared_ptr<const AbortReason> abort_reason() const override { return inner_.abort_reason(); }
  void recover(Deadline deadline) override { inner_.recover(deadline); }
  void connect(std::span<const Rank> to, Deadline deadline) override {
    inner_.connect(to, deadline);
  }
  bool waits_on_device() const override { return inner_.waits_on_device(); }

 private:
  void enter(Call call);

  Transport& inner_;
  std::optional<Call> failing_;
  int countdown_ = 0;
  std::function<void()> how_;
  std::vector<int> counts_ = std::vector<int>(5);
  std::function<void(const TransferId& id, c10::IValue& value)> alter_;
  std::vector<std::pair<PendingPtr, TransferId>> receives_;
};

/// Measures what is under way from its making.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace stagecraft
