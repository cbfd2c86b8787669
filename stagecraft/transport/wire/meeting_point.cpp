#include "stagecraft/transport/wire/meeting_point.h"

#include <chrono>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {
namespace {

const Rank kKeeper(0);
// How long rank 0 may take to answer a withdrawal. Its inbox thread answers, so it need not wait
// for rank 0's own thread.
constexpr auto kGrace = std::chrono::milliseconds(300);

std::string pack(uint64_t number, const std::vector<Participant>& participants) {
  ByteWriter out;
  out.put(number);
  for (const auto& participant : participants) {
    out.put_text(participant.call);
    out.put_text(participant.bytes);
  }
  return out.take();
}

}  // namespace

MeetingPoint::MeetingPoint(Rank rank, const WorldState& world, Send send,
                           std::function<void()> on_recovered)
    : rank_(rank),
      world_(world),
      send_(std::move(send)),
      on_recovered_(std::move(on_recovered)),
      collectives_(world.num_ranks()),
      recoveries_(world.num_ranks()) {}

MeetingPoint::Result MeetingPoint::meet(bool is_recovery, uint64_t epoch, const std::string& call,
                                        const std::string& bytes, Deadline deadline) {
  FrameHead head;
  head.is_recovery = is_recovery ? 1 : 0;
  head.epoch = epoch;
  const auto disturbance = [&] { return find_disturbance(world_, !is_recovery); };
  auto lock = waiters_.lock();
  if (const auto before = disturbance()) return {{*before, {}, /*waited=*/false}};
  // All three before kCome is sent: the answer may arrive on a reader's thread before the wait
  // begins.
  head.step = ++attempt_;
  met_.reset();
  missing_.reset();
  lock.unlock();

  ByteWriter body;
  body.put_text(call);
  body.put_text(bytes);
  head.kind = FrameKind::kCome;
  // Without the lock: on rank 0 this call may deliver the answer, which takes the lock.
  tell_keeper(head, body.bytes());
  lock.lock();
  try {
    waiters_.wait(lock, deadline, [&] { return met_ || disturbance(); });
  } catch (...) {
    // A wait tick has thrown (Ctrl-C). Without kWithdraw the other ranks could meet with a rank
    // that does not take part. Nothing waits for the answer: the exception should leave soon.
    lock.unlock();
    head.kind = FrameKind::kWithdraw;
    tell_keeper(head, {});
    throw;
  }
  if (met_) return {{}, std::move(met_)};

  // The abort or departure may have come after all ranks had met. Rank 0 knows.
  const auto first = disturbance();
  lock.unlock();
  head.kind = FrameKind::kWithdraw;
  tell_keeper(head, {});
  lock.lock();
  waiters_.wait(lock, Deadline::after(kGrace),
                [&] { return met_ || missing_ || (rank_ != kKeeper && world_.has_left(kKeeper)); });
  if (met_) return {{}, std::move(met_)};
  // The state after the wait is preferred: an abort that has arrived meanwhile tells why a rank
  // left.
  const auto last = disturbance();
  if (first || last) return {{last ? *last : *first}};
  return {{MeetingResult::Outcome::kTimedOut, missing_.value_or(std::vector<Rank>{kKeeper})}};
}

void MeetingPoint::wake() {
  auto lock = waiters_.lock();
  waiters_.unlock_and_wake(lock);
}

void MeetingPoint::tell_keeper(const FrameHead& head, std::string_view body) {
  if (rank_ != kKeeper) return send_(kKeeper, head, body);
  on_frame(rank_, head, body);
}

void MeetingPoint::answer(Rank to, const FrameHead& head, std::string_view body) {
  if (to != rank_) return send_(to, head, body);
  on_answer(head, body);
}

void MeetingPoint::on_frame(Rank from, const FrameHead& head, std::string_view body) {
  const bool is_for_keeper = head.kind == FrameKind::kCome || head.kind == FrameKind::kWithdraw;
  require<MetadataError>(is_for_keeper ? rank_ == kKeeper : from == kKeeper,
                         "rank {} received a frame of a collective that is not for it",
                         rank_.value());
  if (head.kind == FrameKind::kCome) {
    on_come(from, head, body);
  } else if (head.kind == FrameKind::kWithdraw) {
    on_withdraw(from, head);
  } else {
    on_answer(head, body);
  }
}

void MeetingPoint::on_come(Rank from, const FrameHead& head, std::string_view body) {
  ByteReader in(body);
  Participant participant;
  participant.attempt = head.step;
  participant.call = std::string(in.get_text());
  participant.bytes = std::string(in.get_text());
  std::optional<std::vector<Participant>> met;
  uint64_t number = 0;
  {
    const std::lock_guard lock(keeper_);
    // The frame is from before the recovery: no rank waits for an answer.
    if (head.epoch != epoch_) return;
    met = (head.is_recovery != 0 ? recoveries_ : collectives_).come(from, std::move(participant));
    if (!met) return;
    number = next_number_++;
    if (head.is_recovery != 0) {
      ++epoch_;
      // Contributions of the old epoch would complete a collective of the new one.
      collectives_.clear();
    }
  }
  // Answers are sent without keeper_: the answer to this rank takes waiters_, and the two locks are
  // never held together.
  const std::string bytes = pack(number, *met);
  FrameHead reply;
  reply.kind = FrameKind::kMet;
  reply.is_recovery = head.is_recovery;
  // This rank, rank 0, is answered last: when it continues, it may leave, and then it sends nothing
  // more.
  for (std::size_t i = met->size(); i-- > 0;) {
    reply.step = (*met)[i].attempt;
    answer(Rank(static_cast<int32_t>(i)), reply, bytes);
  }
}

void MeetingPoint::on_withdraw(Rank from, const FrameHead& head) {
  std::optional<std::vector<Rank>> missing;
  {
    const std::lock_guard lock(keeper_);
    missing = (head.is_recovery != 0 ? recoveries_ : collectives_).withdraw(from, head.step);
  }
  if (!missing) return;
  ByteWriter bytes;
  for (const Rank rank : *missing) bytes.put(rank.value());
  FrameHead reply;
  reply.kind = FrameKind::kWithdrawn;
  reply.is_recovery = head.is_recovery;
  reply.step = head.step;
  answer(from, reply, bytes.bytes());
}

void MeetingPoint::on_answer(const FrameHead& head, std::string_view body) {
  ByteReader in(body);
  if (head.kind == FrameKind::kWithdrawn) {
    std::vector<Rank> missing;
    while (in.left() > 0) missing.push_back(Rank(in.get<int32_t>()));
    auto lock = waiters_.lock();
    // An answer to an earlier attempt, which has given up waiting, is dropped.
    if (head.step == attempt_) missing_ = std::move(missing);
    waiters_.unlock_and_wake(lock);
    return;
  }
  auto met = std::make_shared<Met>();
  met->number = in.get<uint64_t>();
  for (int32_t i = 0; i < world_.num_ranks(); ++i) {
    met->calls.emplace_back(in.get_text());
    met->bytes.emplace_back(in.get_text());
  }
  // Before the rank's thread continues: its first call must find empty mailboxes and the new epoch.
  if (head.is_recovery != 0) on_recovered_();
  auto lock = waiters_.lock();
  if (head.step == attempt_) met_ = std::move(met);
  waiters_.unlock_and_wake(lock);
}

}  // namespace stagecraft::detail
