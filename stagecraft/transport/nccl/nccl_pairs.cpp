#include "stagecraft/transport/nccl/nccl_pairs.h"

#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/detached.h"
#include "stagecraft/transport/core/exchange_errors.h"
#include "stagecraft/transport/device/out_of_memory.h"
#include "stagecraft/transport/device/side_streams.h"

namespace stagecraft::detail {
namespace {

using Comm = NcclLibrary::Comm;
using Result = NcclLibrary::Result;
using State = NcclPairState::State;
using UniqueId = NcclLibrary::UniqueId;

// ncclCommAbort can block for ever. Its thread is then abandoned, and the rank continues with its
// error message.
constexpr auto kAbortLimit = std::chrono::seconds(2);
// A call that holds a communicator longer than this waits for a peer. Only the abort of the
// communicator ends it.
constexpr auto kCallLimit = std::chrono::milliseconds(200);
// The kernel delays timers by up to 50 µs by default, so a nap takes 20 to 70 µs.
constexpr auto kNap = std::chrono::microseconds(20);

void* handle_of(const c10::Stream& stream) {
  return stream.native_handle();
}

// A point on a device's current stream.
class Mark {
 public:
  explicit Mark(c10::Device device) {
    if (!has_streams(device)) return;
    event_.emplace(device.type());
    event_->record(current_stream(device));
  }
  bool is_done() const { return !event_ || event_->query(); }

 private:
  std::optional<c10::Event> event_;
};

// Counts the receives on a stream that the device has completed. After each receive the stream
// copies a sequence number to pinned host memory. Completion is read from there, because CUDA calls
// can block while a stream waits for a peer.
class Arrivals {
 public:
  static constexpr int64_t kNumbers =
      1 << 15;  // more than the receives that can be pending on a stream

  Arrivals() = default;
  // `numbers` has 0, 1, ... on the device.
  explicit Arrivals(at::Tensor numbers)
      : numbers_(std::move(numbers)),
        seen_(numbers_.defined() ? at::zeros({1}, at::TensorOptions(at::kShort).pinned_memory(true))
                                 : at::Tensor()) {}

  static at::Tensor make_numbers(c10::Device device) {
    auto numbers = at::arange(kNumbers, at::TensorOptions(at::kShort).device(device));
    numbers.select(0, 0).item();  // waits, because other streams read them
    return numbers;
  }

  // Adds the copy of the next number to the current stream, after a receive.
  void mark() {
    if (!numbers_.defined()) return;
    const at::NoGradGuard no_grad;
    const int64_t number = (last_ + 1) % kNumbers;
    seen_.copy_(numbers_.slice(0, number, number + 1), /*non_blocking=*/true);
    last_ = static_cast<int16_t>(number);
  }
  bool are_all_there() const {
    if (!numbers_.defined()) return true;
    return __atomic_load_n(seen_.const_data_ptr<int16_t>(), __ATOMIC_ACQUIRE) == last_;
  }

 private:
  at::Tensor numbers_;
  at::Tensor seen_;  // written by the device
  // Atomic, because `find_missing` runs on other threads than `mark`.
  std::atomic<int16_t> last_{0};
};

class DoneWork final : public Work {
 public:
  bool wait() override { return true; }
  void interrupt() override {}
};

class LinkWork final : public Work {
 public:
  LinkWork(at::Tensor bytes, Mark mark) : bytes_(std::move(bytes)), mark_(std::move(mark)) {}

  bool wait() override {
    while (!mark_.is_done()) {
      if (is_interrupted_.exchange(false)) return false;
      std::this_thread::sleep_for(kNap);
    }
    return true;
  }
  void interrupt() override { is_interrupted_ = true; }

 private:
  at::Tensor bytes_;
  Mark mark_;
  std::atomic<bool> is_interrupted_{false};
};

// Calls `body` for each communicator, all at once on detached threads, and waits up to `limit`.
// Then the calls continue alone.
void run_for_each(const std::vector<Comm>& comms, std::chrono::nanoseconds limit,
                  const std::function<void(Comm)>& body) {
  std::vector<std::future<void>> calls;
  for (Comm comm : comms) calls.push_back(start_detached("sc nccl", [body, comm] { body(comm); }));
  const auto end = Deadline::after(limit);
  for (const auto& call : calls) call.wait_until(end.at());
}

}  // namespace

// A communicator of two ranks: its rank 0 sends, its rank 1 receives.
struct NcclPairs::Pair {
  Pair() = default;
  explicit Pair(const at::Tensor& numbers) : arrivals(numbers) {}

  Rank other;
  bool is_sender = false;
  std::timed_mutex mutex;  ///< held while the communicator is used
  NcclPairState life;
  std::atomic<Comm> comm{nullptr};  ///< null in kIdle, and in kConnecting until it is created
  uint64_t epoch = 0;
  Arrivals arrivals;  ///< of the receives
  /// Counts the ends of communicators: a thread that creates one gives up if this has changed.
  std::atomic<uint64_t> ends{0};
  std::atomic<bool> was_open{false};  ///< of the current communicator; for messages

  /// Whether transfers of that epoch are possible; others are skipped. REQUIRES the mutex.
  bool is_open(uint64_t wanted) const { return life.state() == State::kOpen && epoch == wanted; }
  void fail(const std::string& what) { life.move_to(State::kFailed, what); }
};

// The data of a thread that creates a communicator; lives as long as that thread.
struct NcclPairs::Connecting {
  std::shared_ptr<const NcclLibrary> library;
  c10::Device device = c10::kCPU;
  uint64_t epoch = 0;
  PairPtr pair;
  UniqueId id{};
  uint64_t ends = 0;  ///< of the pair, when it began

  bool is_given_up() const { return pair->ends != ends; }
};

NcclPairs::NcclPairs(std::shared_ptr<const NcclLibrary> library, Rank rank, int32_t ranks,
                     c10::Device device, std::chrono::nanoseconds connect_limit)
    : library_(std::move(library)), rank_(rank), device_(device), connect_limit_(connect_limit) {
  const c10::InferenceMode off(false);  // other threads write to these tensors
  const auto numbers = has_streams(device) ? Arrivals::make_numbers(device) : at::Tensor();
  for (Rank other(0); other.value() < ranks; ++other) {
    out_.push_back(other == rank ? nullptr : std::make_shared<Pair>());
    in_.push_back(other == rank ? nullptr : std::make_shared<Pair>(numbers));
    if (other == rank) continue;
    out(other).other = other;
    out(other).is_sender = true;
    in(other).other = other;
  }
}

NcclPairs::~NcclPairs() {
  close(std::chrono::nanoseconds(0));
}

WorkPtr NcclPairs::send(Rank to, uint64_t epoch, const at::Tensor& bytes) {
  auto& pair = out(to);
  const std::lock_guard lock(pair.mutex);
  // The pair has failed, or the epoch is over. The receiver skips such transfers, too, and the
  // abort of the world reports the loss.
  if (!pair.is_open(epoch)) return std::make_shared<DoneWork>();
  void* const stream = has_streams(device_) ? handle_of(current_stream(device_)) : nullptr;
  const Result result =
      library_->send(bytes.const_data_ptr(), static_cast<std::size_t>(bytes.numel()),
                     NcclLibrary::kBytes, /*peer=*/1, pair.comm, stream);
  if (result != NcclLibrary::kSuccess) pair.fail("ncclSend: " + library_->describe(result));
  return std::make_shared<LinkWork>(bytes, Mark(device_));
}

void NcclPairs::receive(Rank from, uint64_t epoch, const at::Tensor& bytes) {
  auto& pair = in(from);
  // The sender's part is done, so this rank's part does not wait for the sender any more.
  const auto limit = Deadline::after(connect_limit_);
  while (pair.life.state() == State::kConnecting && is_current(epoch) && !limit.has_passed()) {
    std::this_thread::sleep_for(kNap);
  }
  const std::lock_guard lock(pair.mutex);
  if (!pair.is_open(epoch)) return;
  void* const stream = has_streams(device_) ? handle_of(current_stream(device_)) : nullptr;
  const Result result =
      library_->receive(bytes.mutable_data_ptr(), static_cast<std::size_t>(bytes.numel()),
                        NcclLibrary::kBytes, /*peer=*/0, pair.comm, stream);
  if (result != NcclLibrary::kSuccess) pair.fail("ncclRecv: " + library_->describe(result));
  try {
    pair.arrivals.mark();
  } catch (const c10::Error& error) {
    throw OutOfMemory(
        error.what_without_backtrace());  // this rank's device fails, not the other one
  }
}

std::optional<Rank> NcclPairs::find_missing() const {
  for (const auto& pair : in_) {
    if (pair && !pair->arrivals.are_all_there()) return pair->other;
  }
  return std::nullopt;
}

void NcclPairs::cancel(uint64_t epoch) {
  uint64_t known = cancelled_;
  while (known <= epoch && !cancelled_.compare_exchange_weak(known, epoch + 1)) {
  }
}

// Connecting -----------------------------------------------------------------------------------

void NcclPairs::begin_epoch(uint64_t epoch) {
  // The epoch changes first: a pair that is opened for the last epoch in between is ended, too.
  epoch_ = epoch;
  abort();
}

bool NcclPairs::open(Rank to, uint64_t epoch,
                     const std::function<void(const std::string& id)>& send_id,
                     const std::function<bool()>& is_over) {
  const auto& pair = out_[to];
  std::string id;
  {
    const std::lock_guard lock(pair->mutex);
    if (pair->is_open(epoch)) return true;
    if (!is_current(epoch)) return false;
    if (pair->life.state() == State::kIdle) {
      UniqueId made{};
      // An id serves one communicator only.
      const Result result = library_->get_unique_id(&made);
      require<ArgumentError>(result == NcclLibrary::kSuccess,
                             "NCCL: rank {} with rank {}: ncclGetUniqueId: {}", rank_.value(),
                             to.value(), library_->describe(result));
      id.assign(made.bytes.data(), made.bytes.size());
      // Under the mutex: a second thread that opens the pair must find kConnecting, and make no
      // second id.
      start(pair, made);
    }
  }
  // Without the mutex: sending takes a lock of the outbox, which comes before it (docs/threads.md).
  if (!id.empty()) send_id(id);
  return wait_open(*pair, epoch, is_over);
}

bool NcclPairs::wait_accepted(Rank from, uint64_t epoch, const std::function<bool()>& is_over) {
  return wait_open(in(from), epoch, is_over);
}

bool NcclPairs::wait_open(Pair& pair, uint64_t epoch, const std::function<bool()>& is_over) const {
  const auto begin = Deadline::Clock::now();
  const auto deadline = Deadline::after(connect_limit_);
  for (State state = pair.life.state(); state != State::kOpen; state = pair.life.state()) {
    const std::string failure = pair.life.failure();
    require<ArgumentError>(failure.empty(), "NCCL: rank {} with rank {}: {}", rank_.value(),
                           pair.other.value(), failure);
    // A pair that this rank has opened is idle again when its communicator was ended.
    const bool is_ended = pair.is_sender && state == State::kIdle;
    if (is_ended || is_over() || !is_current(epoch)) return false;
    if (deadline.has_passed()) {
      throw_timeout(rank_, Deadline::Clock::now() - begin,
                    fmt::format("rank {} to connect over NCCL", pair.other.value()));
    }
    std::this_thread::sleep_for(kNap);
  }
  return true;
}

void NcclPairs::accept(Rank from, uint64_t epoch, std::string_view id) {
  UniqueId made{};
  require<MetadataError>(id.size() == made.bytes.size(), "a key for NCCL has {} bytes, expected {}",
                         id.size(), made.bytes.size());
  std::memcpy(made.bytes.data(), id.data(), id.size());
  const auto& pair = in_[from];
  const std::lock_guard lock(pair->mutex);
  if (!is_current(epoch)) return;
  require<MetadataError>(pair->life.state() == State::kIdle, "rank {} sent two keys for NCCL",
                         from.value());
  start(pair, made);
}

void NcclPairs::start(const PairPtr& pair, const UniqueId& id) {
  pair->life.move_to(State::kConnecting);
  pair->was_open = false;
  auto job = std::make_shared<Connecting>();
  job->library = library_;
  job->device = device_;
  job->epoch = epoch_;
  job->pair = pair;
  job->id = id;
  // The number is compared later, instead of a flag: the pair may have begun a new communicator by
  // then.
  job->ends = pair->ends;
  start_detached("sc nccl", [job] { run_connecting(*job); });
}

void NcclPairs::run_connecting(Connecting& job) {
  try {
    const c10::OptionalDeviceGuard guard(job.device.is_cpu() ? std::nullopt
                                                             : std::optional(job.device));
    connect_pair(job);
  } catch (...) {
    const std::lock_guard lock(job.pair->mutex);
    if (!job.is_given_up()) job.pair->fail(describe(std::current_exception()));
  }
}

void NcclPairs::connect_pair(Connecting& job) {
  const auto& library = *job.library;
  auto& pair = *job.pair;
  const auto check = [&](Result result, const char* call) {
    require<ArgumentError>(result == NcclLibrary::kSuccess, "{}: {}", call,
                           library.describe(result));
  };
  Comm comm = nullptr;
  check(library.comm_init_rank(&comm, 2, job.id, pair.is_sender ? 0 : 1), "ncclCommInitRank");
  // NCCL connects when the first message is sent, and waits for the peer then. So a message is sent
  // now.
  SideStreams streams;
  const SideStreams::Guard guard(streams, job.device);
  const auto byte = at::empty({1}, at::TensorOptions(at::kByte).device(job.device));
  void* const stream = has_streams(job.device) ? handle_of(current_stream(job.device)) : nullptr;
  {
    const std::lock_guard lock(pair.mutex);
    if (job.is_given_up()) {
      // No other thread knows this communicator, so this one must end it.
      library.comm_abort(comm);
      return;
    }
    // Before the first message, which waits for the peer: an abort must find the communicator to
    // end that wait.
    pair.comm = comm;
    pair.epoch = job.epoch;
    if (pair.is_sender) {
      check(library.send(byte.const_data_ptr(), 1, NcclLibrary::kBytes, 1, comm, stream),
            "ncclSend");
    } else {
      check(library.receive(byte.mutable_data_ptr(), 1, NcclLibrary::kBytes, 0, comm, stream),
            "ncclRecv");
    }
  }
  const Mark mark(job.device);
  while (!mark.is_done() && !job.is_given_up()) std::this_thread::sleep_for(kNap);
  const std::lock_guard lock(pair.mutex);
  if (job.is_given_up()) return;
  pair.was_open = true;
  pair.life.move_to(State::kOpen);
}

// Ending ---------------------------------------------------------------------------------------

void NcclPairs::end_all(Result (*finish)(Comm), std::chrono::nanoseconds limit) {
  std::vector<Comm> comms;
  for (const auto* pairs : {&out_, &in_}) {
    for (const auto& pair : *pairs) {
      if (!pair) continue;
      // If the lock is not available, continues without it: a call that NCCL never returns from
      // holds it for ever.
      const std::unique_lock lock(pair->mutex, kCallLimit);
      ++pair->ends;
      // The exchange decides which of several threads ends the communicator.
      if (Comm comm = pair->comm.exchange(nullptr)) comms.push_back(comm);
      pair->life.move_to(State::kIdle);
    }
  }
  if (comms.empty()) return;
  // All at once: the end of one may wait for the device, and so for a kernel of a different one.
  run_for_each(comms, limit, [finish, library = library_, device = device_](Comm comm) {
    const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
    finish(comm);
  });
}

void NcclPairs::abort() {
  end_all(library_->comm_abort, kAbortLimit);
}

void NcclPairs::close(std::chrono::nanoseconds limit) {
  end_all(library_->comm_destroy, limit);
}

State NcclPairs::state(Rank other, bool is_sender) const {
  return (is_sender ? out(other) : in(other)).life.state();
}

std::optional<AbortReason> NcclPairs::find_failure() const {
  for (const auto* pairs : {&out_, &in_}) {
    for (const auto& pair : *pairs) {
      if (!pair) continue;
      std::string failure = pair->life.failure();
      if (failure.empty()) {
        // The mutex is not taken, because a call that waits may hold it. The caller holds ending_
        // of NcclLink, so no communicator ends in the meantime.
        Result result = NcclLibrary::kSuccess;
        if (Comm comm = pair->comm) library_->comm_get_async_error(comm, &result);
        if (result == NcclLibrary::kSuccess || result == NcclLibrary::kInProgress) continue;
        failure = library_->describe(result);
      }
      // A pair that has never opened shows no fault of the peer, so this rank names itself.
      if (!pair->was_open) {
        return AbortReason{rank_,
                           fmt::format("rank {}: NCCL: rank {} with rank {}: {}", rank_.value(),
                                       rank_.value(), pair->other.value(), failure)};
      }
      return AbortReason{pair->other, fmt::format("rank {}: NCCL between it and rank {}: {}",
                                                  pair->other.value(), rank_.value(), failure)};
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft::detail
