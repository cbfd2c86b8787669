#include "tests/support/fake_mpi.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace stagecraft::detail {

// A call of the plug-in.
class FakeMpi::Call {
 public:
  Call() {
    const std::lock_guard lock(get().mutex_);
    if (++get().inside_ > 1) get().has_overlapped_ = true;
  }
  ~Call() {
    const std::lock_guard lock(get().mutex_);
    --get().inside_;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

FakeMpi& FakeMpi::get() {
  // Never destroyed: the process ends MPI after the tests.
  static auto* const fake = new FakeMpi();
  return *fake;
}

const MpiPlugin& FakeMpi::plugin() {
  static const MpiPlugin made = [] {
    MpiPlugin table{};
    table.version = kMpiPluginVersion;
    table.name = "a fake";
    table.start = [](MpiFacts* facts, char*) {
      facts->num_ranks = 2;
      return 0;
    };
    table.finish = [] {};
    table.wait_for_all = [] { return 0; };
    table.send = [](void* group, int32_t to, int32_t tag, const void*, uint64_t size, void* owner,
                    int32_t* is_done, char* problem) {
      const Call call;
      return get().post({true, group, to, tag, size, std::this_thread::get_id(), owner}, is_done,
                        problem);
    };
    table.receive = [](void* group, int32_t from, int32_t tag, void*, uint64_t size, void* owner,
                       int32_t* is_done, char* problem) {
      const Call call;
      return get().post({false, group, from, tag, size, std::this_thread::get_id(), owner}, is_done,
                        problem);
    };
    table.poll = [](const MpiDone** done) {
      const Call call;
      return get().poll(done);
    };
    table.cancel = [](void* owner) {
      const Call call;
      get().cancel(owner);
    };
    table.free_group = [](void* group) {
      const Call call;
      const std::lock_guard lock(get().mutex_);
      get().freed_.push_back(group);
    };
    return table;
  }();
  return made;
}

void FakeMpi::reset() {
  const std::lock_guard lock(mutex_);
  answer_ = Answer::kInProgress;
  entries_.clear();
  cancelled_.clear();
  freed_.clear();
  has_overlapped_ = false;
}

void FakeMpi::set_answer(Answer answer) {
  const std::lock_guard lock(mutex_);
  answer_ = answer;
}

std::vector<FakeMpi::Transfer> FakeMpi::posted() {
  const std::lock_guard lock(mutex_);
  std::vector<Transfer> transfers;
  for (const Entry& entry : entries_) transfers.push_back(entry.transfer);
  return transfers;
}

std::size_t FakeMpi::num_in_progress() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [](const Entry& entry) { return entry.is_in_progress; }));
}

void FakeMpi::end(std::size_t number, bool is_failed) {
  const std::lock_guard lock(mutex_);
  end_locked(number, is_failed);
}

void FakeMpi::end_all() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) end_locked(i, false);
}

std::vector<std::size_t> FakeMpi::cancelled() {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

std::vector<void*> FakeMpi::freed() {
  const std::lock_guard lock(mutex_);
  return freed_;
}

bool FakeMpi::has_overlapped() {
  const std::lock_guard lock(mutex_);
  return has_overlapped_;
}

int32_t FakeMpi::post(Transfer transfer, int32_t* is_done, char* problem) {
  const std::lock_guard lock(mutex_);
  const bool is_in_progress = answer_ == Answer::kInProgress;
  entries_.push_back({transfer, is_in_progress});
  if (answer_ == Answer::kFailed) {
    std::snprintf(problem, kMpiProblemBytes, "no such rank");
    return 1;
  }
  *is_done = is_in_progress ? 0 : 1;
  return 0;
}

int32_t FakeMpi::poll(const MpiDone** done) {
  const std::lock_guard lock(mutex_);
  reported_ = std::exchange(ended_, {});
  *done = reported_.data();
  return static_cast<int32_t>(reported_.size());
}

void FakeMpi::cancel(void* owner) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].is_in_progress || entries_[i].transfer.owner != owner) continue;
    cancelled_.push_back(i);
    end_locked(i, true);
  }
}

void FakeMpi::end_locked(std::size_t number, bool is_failed) {
  Entry& entry = entries_[number];
  if (!std::exchange(entry.is_in_progress, false)) return;
  ended_.push_back({entry.transfer.owner, is_failed ? 1 : 0});
}

}  // namespace stagecraft::detail

extern "C" SC_FAKE_MPI_API const stagecraft::detail::MpiPlugin* stagecraft_mpi_plugin() {
  return &stagecraft::detail::FakeMpi::plugin();
}
