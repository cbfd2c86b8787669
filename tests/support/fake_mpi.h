#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stagecraft/transport/mpi/mpi_plugin.h"

#define SC_FAKE_MPI_API __attribute__((visibility("default")))

namespace stagecraft::detail {

/// A plug-in that stands for an MPI: a shared library that tests link and MpiProgress loads. A
/// transfer stays in progress until a test ends it. Thread-safe, except where noted.
class SC_FAKE_MPI_API FakeMpi {
 public:
  struct Transfer {
    bool is_send = false;
    void* group = nullptr;
    int32_t other = 0;
    int32_t tag = 0;
    uint64_t size = 0;
    std::thread::id poster;
    void* owner = nullptr;
  };
  /// What the next sends and receives return.
  enum class Answer { kInProgress, kDone, kFailed };

  static FakeMpi& get();
  static const MpiPlugin& plugin();

  /// Forgets the past. REQUIRES that no transfer is in progress.
  void reset();
  void set_answer(Answer answer);
  /// All transfers that were posted since `reset`, in their order.
  std::vector<Transfer> posted();
  std::size_t num_in_progress();
  /// Ends transfers that are in progress: the next poll reports them.
  void end(std::size_t number, bool is_failed = false);
  void end_all();
  /// The receives that were cancelled, by their number among `posted`.
  std::vector<std::size_t> cancelled();
  std::vector<void*> freed();
  /// Whether two threads were inside MPI at the same time.
  bool has_overlapped();

 private:
  class Call;
  struct Entry {
    Transfer transfer;
    bool is_in_progress = false;
  };

  int32_t post(Transfer transfer, int32_t* is_done, char* problem);
  int32_t poll(const MpiDone** done);
  void cancel(void* owner);
  void end_locked(std::size_t number, bool is_failed);

  std::mutex mutex_;
  Answer answer_ = Answer::kInProgress;
  std::vector<Entry> entries_;
  std::vector<MpiDone> ended_;
  std::vector<MpiDone> reported_;
  std::vector<std::size_t> cancelled_;
  std::vector<void*> freed_;
  int inside_ = 0;
  bool has_overlapped_ = false;
};

}  // namespace stagecraft::detail
