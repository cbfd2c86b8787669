#include "stagecraft/transport/nccl/nccl_transport.h"

#include <string>
#include <thread>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/core/exchange_errors.h"

namespace stagecraft::detail {
namespace {

// How a thread waits for the device: mostly it is through with what was received.
constexpr int kBusyTurns = 200;
constexpr auto kDeviceNap = std::chrono::microseconds(20);

// An engine with a link beside it.
class LinkedEngine final : public Engine {
 public:
  LinkedEngine(std::unique_ptr<Engine> engine, std::shared_ptr<DeviceLink> link)
      : engine_(std::move(engine)), link_(std::move(link)) {}

  Rank rank() const override { return engine_->rank(); }
  int32_t num_ranks() const override { return engine_->num_ranks(); }
  WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) override {
    return engine_->send(to, tag, bytes);
  }
  WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    return engine_->receive(from, tag, bytes);
  }
  bool rewards_asking() const override { return engine_->rewards_asking(); }
  bool copies_in_send() const override { return engine_->copies_in_send(); }
  DeviceLink* device_link() override { return link_.get(); }
  void watch(Watch watch) override { engine_->watch(std::move(watch)); }
  void forget(Rank other) override { engine_->forget(other); }

 private:
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<DeviceLink> link_;
};

}  // namespace

NcclTransport::NcclTransport(std::unique_ptr<Engine> engine,
                             std::shared_ptr<const NcclLibrary> library, c10::Device device,
                             const WireOptions& options, Deadline deadline)
    : options_(options),
      link_(std::make_shared<NcclLink>(std::move(library), engine->rank(), engine->num_ranks(),
                                       device)) {
  wire_ = std::make_unique<WireTransport>(std::make_unique<LinkedEngine>(std::move(engine), link_),
                                          options);
  connect(deadline);
  watchdog_ = std::make_unique<Watchdog>(kTick, [this] { on_tick(); });
}

NcclTransport::~NcclTransport() {
  watchdog_.reset();
  // A thread may be in a call of NCCL's that only this ends.
  if (wire_ && wire_->abort_reason()) link_->abort();
  wire_.reset();
  link_->close(options_.linger);
}

void NcclTransport::connect(Deadline deadline) {
  const std::lock_guard lock(connecting_);
  // What was under way may keep a thread in a call of NCCL's, and that one the stream of frames.
  link_->abort();
  try {
    std::vector<std::string> ids;
    for (const auto& value : wire_->all_gather(link_->make_ids(), deadline)) {
      require<MetadataError>(value.isString(), "NCCL: a rank sent no ids");
      ids.push_back(value.toStringRef());
    }
    link_->connect(ids, wire_->epoch(), deadline,
                   [this] { return wire_->abort_reason() != nullptr; });
    // All can send, or none.
    wire_->barrier(deadline);
  } catch (const std::exception& error) {
    link_->abort();
    if (!wire_->abort_reason()) {
      wire_->abort({rank(), fmt::format("rank {}: {}", rank().value(), error.what()),
                    std::current_exception()});
    }
    throw;
  }
}

void NcclTransport::recover(Deadline deadline) {
  wire_->recover(deadline);
  connect(deadline);
}

// A transfer that NCCL gives up is over on its stream as one that came is; but a link is aborted
// after its world only, and a failure stands until then.
void NcclTransport::settle(Deadline deadline) {
  const auto begin = Deadline::Clock::now();
  for (int turn = 0;; ++turn) {
    std::optional<Rank> missing = link_->find_missing();
    bool is_settled = false;
    if (!missing) {
      const std::unique_lock lock(connecting_, std::try_to_lock);
      const auto failure = lock.owns_lock() ? link_->find_failure() : std::nullopt;
      is_settled = lock.owns_lock() && !failure;
      if (failure) missing = failure->rank;
    }
    // Behind the look: what an aborted link leaves behind has come, too.
    if (const auto reason = wire_->abort_reason()) {
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    if (is_settled) return;
    if (deadline.has_passed()) {
      throw_timeout(
          rank(), Deadline::Clock::now() - begin,
          fmt::format("what rank {} has sent over NCCL", missing.value_or(rank()).value()));
    }
    if (turn < kBusyTurns) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kDeviceNap);
    }
  }
}

void NcclTransport::on_tick() {
  const std::unique_lock lock(connecting_, std::try_to_lock);
  // Whoever connects sees it himself.
  if (!lock.owns_lock()) return;
  // The reason may be forgotten between two ticks; that the link has ended is not.
  const bool is_over =
      link_->is_ended() || link_->epoch() != wire_->epoch() || wire_->abort_reason();
  if (is_over) link_->abort();
  auto failure = is_over ? std::nullopt : link_->find_failure();
  const auto now = Deadline::Clock::now();
  if (!failure) failing_since_.reset();
  if (failure && !failing_since_) failing_since_ = now;
  // Another rank that ends its communicators because the world is aborted says so, too.
  if (!failure || now - *failing_since_ < kGrace) return;
  fail(std::move(*failure));
}

// First the world is aborted, since what the link leaves behind is no value of anybody's; but
// telling the others may need the link's end: a thread in a call of NCCL's keeps the stream of
// frames.
void NcclTransport::fail(AbortReason reason) {
  std::thread teller([&] { wire_->abort(std::move(reason)); });
  while (!link_->is_ended() && !wire_->abort_reason()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  link_->abort();
  teller.join();
}

}  // namespace stagecraft::detail
