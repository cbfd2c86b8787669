#include "stagecraft/transport/mpi/mpi_progress.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>

#include <sched.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/transport/core/world_state.h"

namespace stagecraft::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint64_t kLarge = MpiWork::kLarge;
// A pause is this fraction of the time since the last event, so it delays the next event by at most
// that fraction.
constexpr int kPauseShare = 16;
// The kernel may delay timers by 50 µs by default. That is longer than the shortest pause.
constexpr unsigned long kTimerSlackNanos = 1000;
// A thread that has polled within this time will most likely poll again. If not, little is lost:
// the pause that is not ended lasts at most kLongestPause, which is as long.
constexpr auto kAgain = nanoseconds(milliseconds(1));
// How often a thread that waits for MPI checks whether the wait is pointless.
constexpr auto kLookIfStuck = milliseconds(100);
// How long MPI_Finalize may take after a rank has ended: this rank may be slow to return from it.
constexpr auto kFinishWithoutPeer = milliseconds(5000);
// How long it may take if it is not known whether all ranks are alive. Giving up ends the job,
// including ranks that are still saving their results.
constexpr auto kFinishWithUnknown = milliseconds(60'000);
// How long it may take after all ranks have called it. MPICH 4.0 over UCX's TCP can hang there.
constexpr auto kFinishTogether = milliseconds(20'000);

std::atomic<MpiProgress*> started{nullptr};
std::atomic<pid_t> started_by{0};

}  // namespace

// Starting -------------------------------------------------------------------------------------

MpiProgress& MpiProgress::get(Deadline deadline) {
  static std::mutex mutex;
  static MpiProgress* progress = nullptr;
  const std::lock_guard lock(mutex);
  // `progress` alone does not mean that MPI has started: after a timeout a later call waits for the
  // same start.
  if (started != nullptr) return *started;
  if (progress == nullptr) {
    const auto kind = find_mpi_kind();
    require<ArgumentError>(
        kind.has_value(),
        "this process was not started by MPI: start it with mpirun or srun, or set STAGECRAFT_MPI");
    // Never destroyed: its thread may be inside MPI when the process ends.
    progress = new MpiProgress(*kind, load_mpi_plugin(*kind));
    std::thread([] { progress->run_thread(); }).detach();
  }
  const auto begin = Clock::now();
  if (!progress->run([] {}, deadline)) {
    throw TimeoutError(
        fmt::format("waited {} for {} to start: some ranks of the job may not be running",
                    describe_wait(Clock::now() - begin), progress->plugin().name));
  }
  const auto& life = progress->life_;
  require<ArgumentError>(
      life.facts().is_single_threaded == 0,
      "the program has initialised MPI for one thread only: request MPI_THREAD_MULTIPLE in "
      "MPI_Init_thread, or let Stagecraft initialise MPI");
  require<ArgumentError>(life.problem().empty(), "{} cannot be used: {}", progress->plugin().name,
                         life.problem());
  started = progress;
  started_by = getpid();
  // Only now: without a start there is nothing to end, and the thread may still be inside MPI_Init.
  std::atexit(on_exit);
  return *progress;
}

MpiProgress::MpiProgress(MpiKind kind, const MpiPlugin& plugin) : kind_(kind), life_(plugin) {
  touch();
}

void MpiProgress::run_thread() {
  name_thread("sc mpi");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanos, 0, 0, 0);
  {
    const std::lock_guard lock(mpi_mutex_);
    // On this thread: MPI demands that the thread that has started MPI also calls MPI_Finalize, and
    // this thread lives until then.
    life_.start();
  }
  for (;;) {
    std::vector<std::function<void()>> calls;
    {
      const std::lock_guard lock(thread_mutex_);
      calls.swap(calls_);
      if (life_.is_over() && calls.empty()) return;
    }
    for (const auto& call : calls) {
      // Polling threads yield when they see this number. They take and release the mutex so often
      // that this thread would seldom get it.
      ++wanted_;
      const std::lock_guard lock(mpi_mutex_);
      --wanted_;
      call();
    }
    advance();
    pause();
  }
}

void MpiProgress::pause() {
  const auto idle = Clock::now().time_since_epoch() - Clock::duration(last_activity_.load());
  const int64_t large = large_bytes_;
  const bool leaves_it = busy_waiters_ > 0;
  if (!leaves_it && large > 0 && idle < MpiWork::time_to_ask(large)) {
    // Large messages move only while MPI is polled, so there is no pause. A thread that computes on
    // this core goes first.
    sched_yield();
    return;
  }
  // While a thread polls, this thread stays away: both would compete for the mutex.
  const auto pause = leaves_it
                         ? nanoseconds(kLongestPause)
                         : std::clamp(nanoseconds(idle / kPauseShare), nanoseconds(kShortestPause),
                                      nanoseconds(kLongestPause));
  std::unique_lock lock(thread_mutex_);
  // Only a long pause can be ended early. A pause of up to 90 µs is about to end anyway: waking a
  // thread takes tens of microseconds.
  pause_.begin(/*is_long=*/pause > 3 * kShortestPause);
  thread_changed_.wait_for(lock, pause, [&] { return pause_.is_woken() || !calls_.empty(); });
  pause_.end();
}

void MpiProgress::wake(bool is_urgent) {
  if (!pause_.can_be_woken() || busy_waiters_ > 0) return;
  // A thread that has just polled itself will poll again, and waking the progress thread costs more
  // than the message.
  if (!is_urgent && Clock::now().time_since_epoch().count() - last_busy_ < kAgain.count()) return;
  const std::lock_guard lock(thread_mutex_);
  // Several threads may wake, and one notification is enough.
  if (pause_.wake()) thread_changed_.notify_one();
}

void MpiProgress::touch() {
  last_activity_ = Clock::now().time_since_epoch().count();
}

void MpiProgress::count_large(int64_t bytes) {
  large_bytes_ += bytes;
}

// Calls ----------------------------------------------------------------------------------------

bool MpiProgress::run_here(const std::function<void()>& call) {
  ++wanted_;
  {
    std::unique_lock lock(mpi_mutex_, std::defer_lock);
    // A thread may be inside MPI for ever, for example in the creation of a communicator. It holds
    // the mutex then.
    while (!lock.try_lock_for(kLookIfStuck) && !is_stuck()) {
    }
    --wanted_;
    if (!lock) return false;
    call();
  }
  // A request may have been queued in the meantime.
  if (has_queued_) advance();
  return true;
}

bool MpiProgress::run(std::function<void()> call, Deadline deadline,
                      const std::function<bool()>& is_over) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
    bool is_late = false;  // counted in late_calls_
  };
  const auto state = std::make_shared<State>();
  {
    const std::lock_guard lock(thread_mutex_);
    calls_.push_back([this, state, call = std::move(call)] {
      call();
      const std::lock_guard done(state->mutex);
      state->is_done = true;
      // The call has returned after all, perhaps long after its caller has given up: MPI can be
      // used again, unless the next call is late, too.
      if (state->is_late) --late_calls_;
      state->changed.notify_all();
    });
    thread_changed_.notify_one();
  }
  std::unique_lock lock(state->mutex);
  while (!state->is_done && !deadline.has_passed() && !is_over()) {
    const auto look = std::min(deadline.at(), Clock::now() + kLookIfStuck);
    state->changed.wait_until(lock, look, [&] { return state->is_done; });
  }
  if (state->is_done) return true;
  state->is_late = true;
  ++late_calls_;
  return false;
}

MpiWorkPtr MpiProgress::send(void* group, Rank to, ByteTransport::Tag tag,
                             const at::Tensor& bytes) {
  return post(std::make_shared<MpiWork>(*this, MpiWork::Kind::kSend, group, to, tag, bytes));
}

MpiWorkPtr MpiProgress::receive(void* group, Rank from, ByteTransport::Tag tag,
                                const at::Tensor& bytes) {
  return post(std::make_shared<MpiWork>(*this, MpiWork::Kind::kReceive, group, from, tag, bytes));
}

MpiWorkPtr MpiProgress::post(MpiWorkPtr work) {
  {
    const std::lock_guard lock(queue_mutex_);
    // First into the queue, then a try to lock: a request is never left behind by a thread that is
    // just leaving MPI (has_queued_ is looked at again after the mutex is released).
    queue_.push_back(work);
    has_queued_ = true;
  }
  // The thread inside MPI posts queued requests before it leaves, and again if more have come.
  while (has_queued_) {
    std::unique_lock lock(mpi_mutex_, std::try_to_lock);
    if (!lock || !life_.is_running()) break;
    post_queued();
  }
  // A posted receive is no event: it may wait for a long time, and polling more often would not
  // help.
  if (work->kind_ == MpiWork::Kind::kSend) {
    touch();
    wake(work->size_ >= kLarge);
  }
  return work;
}

void MpiProgress::post_queued() {
  while (has_queued_) {
    std::vector<MpiWorkPtr> works;
    {
      const std::lock_guard lock(queue_mutex_);
      works.swap(queue_);
      has_queued_ = false;
    }
    for (const auto& work : works) post_one(work);
  }
}

void MpiProgress::post_one(const MpiWorkPtr& work) {
  std::array<char, kMpiProblemBytes> problem{};
  int32_t is_done = 0;
  const bool is_send = work->kind_ == MpiWork::Kind::kSend;
  const int32_t failed = is_send ? plugin().send(work->group_, work->other_.value(), work->tag_,
                                                 work->bytes_.const_data_ptr(), work->size_,
                                                 work.get(), &is_done, problem.data())
                                 : plugin().receive(work->group_, work->other_.value(), work->tag_,
                                                    work->bytes_.mutable_data_ptr(), work->size_,
                                                    work.get(), &is_done, problem.data());
  if (failed != 0) {
    work->problem_ = problem.data();
    work->set(MpiWork::kFailed);
  } else if (is_done != 0) {
    work->set(MpiWork::kDone);
  } else {
    // MPI reads and writes the memory until the request ends, even if no other part of the program
    // waits for it any more.
    work->alive_ = work;
    posted_.insert(work.get());
    if (is_send && work->size_ >= kLarge) count_large(static_cast<int64_t>(work->size_));
  }
}

bool MpiProgress::poll() {
  const MpiDone* done = nullptr;
  const int32_t count = plugin().poll(&done);
  if (count == 0) return false;
  for (int32_t i = 0; i < count; ++i) {
    auto* const work = static_cast<MpiWork*>(done[i].owner);
    posted_.erase(work);
    // Keeps the work alive until the end of this turn: threads that it wakes may release it.
    const auto alive = std::move(work->alive_);
    if (work->kind_ == MpiWork::Kind::kSend && work->size_ >= kLarge) {
      count_large(-static_cast<int64_t>(work->size_));
    }
    if (done[i].is_failed != 0 && !work->is_over()) work->problem_ = "MPI failed to transfer it";
    work->set(done[i].is_failed != 0 ? MpiWork::kFailed : MpiWork::kDone);
  }
  touch();
  return true;
}

bool MpiProgress::advance() {
  do {
    std::unique_lock lock(mpi_mutex_, std::try_to_lock);
    if (!lock) return false;
    // MPI must not be called before it has started or after it has ended.
    if (!life_.is_running()) return true;
    post_queued();
    poll();
    // The condition is checked without the mutex: a thread that found the mutex locked has queued
    // its request, and relies on this one.
  } while (has_queued_);
  return true;
}

void MpiProgress::give_up(void* group, Rank other) {
  run_here([&] {
    // Queued requests of the rank must be given up, too: the rank will not answer them.
    post_queued();
    for (MpiWork* const work : posted_) {
      if (work->group_ == group && work->other_ == other) work->give_up();
    }
  });
}

void MpiProgress::close_group(void* group, bool is_lost, Deadline deadline) {
  --open_groups_;
  bool is_free = false;
  const auto look = [&](bool cancel) {
    post_queued();
    poll();
    is_free = true;
    for (MpiWork* const work : posted_) {
      if (work->group_ != group) continue;
      is_free = false;
      // The receives of frames are always posted, and no frame will fill them. Sends are not
      // cancelled: the last frames must still leave.
      if (cancel && work->kind_ == MpiWork::Kind::kReceive) plugin().cancel(work);
    }
  };
  run_here([&] { look(true); });
  while (!is_free && !is_lost && !deadline.has_passed() && !is_stuck()) {
    std::this_thread::sleep_for(microseconds(50));
    run_here([&] { look(false); });
  }
  // MPI_Comm_free is collective, so a communicator with a lost rank is not freed.
  if (is_free && !is_lost) {
    run_here([&] { plugin().free_group(group); });
  } else {
    log(LogLevel::kInfo, "an MPI communicator is not freed: transfers in it are still in progress");
  }
}

// The end --------------------------------------------------------------------------------------

void MpiProgress::set_peers(std::vector<ProcessName> peers) {
  const std::lock_guard lock(peers_mutex_);
  // Worlds may be smaller than the job. The largest one knows most processes.
  if (peers.size() >= peers_.size()) peers_ = std::move(peers);
}

void MpiProgress::set_local_ranks(int32_t ranks) {
  has_a_core_each_ = ranks <= static_cast<int32_t>(std::thread::hardware_concurrency());
}

void MpiProgress::on_exit() {
  // A child of fork has neither the progress thread nor a rank.
  if (started_by == getpid()) started.load()->finish();
}

bool MpiProgress::wait_for_finish() {
  std::vector<ProcessName> peers;
  {
    const std::lock_guard lock(peers_mutex_);
    peers = peers_;
  }
  const auto here = ProcessName::of_this();
  const bool are_all_known =
      static_cast<int32_t>(peers.size()) == facts().num_ranks &&
      std::all_of(peers.begin(), peers.end(), [&](const auto& peer) { return here.is_near(peer); });
  using State = MpiLife::State;
  const bool can_meet = can_meet_;
  // If MPI ends within 20 ms, nothing more is needed. Otherwise this thread watches the other
  // processes while the progress thread is inside MPI.
  run([this, can_meet] { life_.finish(can_meet); }, Deadline::after(milliseconds(20)));
  if (life_.state() == State::kEnded) return true;
  const auto is_hopeless = [&] { return life_.state() == State::kStranded; };
  const auto have_all_come = [&] {
    const auto state = life_.state();
    return can_meet && (state == State::kFinalizing || state == State::kEnded);
  };
  const auto wait = [&](Deadline deadline, const auto& is_pointless) {
    while (life_.state() != State::kEnded && !is_hopeless() && !deadline.has_passed() &&
           !is_pointless()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  // While all ranks are alive they will come, however long it takes. After a failure they may not:
  // a rank that hangs may be the cause. A rank that has come may end before this rank learns that
  // all have come.
  const bool are_coming = are_all_known && !has_failed_;
  const auto is_any_gone = [&] {
    return std::any_of(peers.begin(), peers.end(),
                       [](const auto& peer) { return has_ended(peer); });
  };
  wait(are_coming ? Deadline(Clock::time_point::max()) : Deadline::after(kFinishWithUnknown),
       [&] { return have_all_come() || is_any_gone(); });
  const bool is_anyone_gone = is_any_gone();
  // After all ranks have come, ranks that have finished may end.
  if (have_all_come()) {
    wait(Deadline::after(kFinishTogether), [] { return false; });
  } else if (is_anyone_gone) {
    wait(Deadline::after(kFinishWithoutPeer), [] { return false; });
  }
  if (life_.state() == State::kEnded) return true;
  const char* const why = have_all_come()
                              ? "MPI_Finalize does not return, although all ranks have called it"
                          : is_anyone_gone || is_hopeless() ? "a rank has died"
                                                            : "a rank has not finished";
  std::fprintf(stderr, "stagecraft: MPI cannot be ended: %s\n", why);
  return false;
}

void MpiProgress::finish() {
  // A program that calls exit while a world exists must not wait for ranks that wait for it.
  if (open_groups_ > 0) cannot_finish_ = true;
  const bool is_at_rest = facts().was_started == 0 && !cannot_finish_
                              ? wait_for_finish()
                              : run([this] { life_.leave(); }, Deadline::after(milliseconds(200)));
  if (is_at_rest) return;
  // The progress thread is stuck inside MPI.
  std::fflush(nullptr);
  // Returning would run the remaining exit handlers and destructors while the progress thread is
  // inside MPI. _Exit flushes no streams, so they are flushed before.
  std::_Exit(EXIT_FAILURE);
}

}  // namespace stagecraft::detail
