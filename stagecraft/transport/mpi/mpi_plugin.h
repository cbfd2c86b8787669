#pragma once

#include <cstddef>
#include <cstdint>

/// Between the library and its plug-ins, of which there is one for each MPI: every MPI has an mpi.h
/// and a binary interface of its own, so one source (mpi_plugin.cpp) is compiled against each and
/// loaded when a program has been started by that MPI.
///
/// No two threads call at a time. What fails gives a number that is not 0 and writes a text into
/// `problem`, which has room for kMpiProblemBytes.
namespace stagecraft::detail {

constexpr uint32_t kMpiPluginVersion = 3;
constexpr std::size_t kMpiProblemBytes = 512;
constexpr const char* kMpiPluginFunction = "stagecraft_mpi_plugin";

struct MpiFacts {
  int32_t rank = 0;
  int32_t num_ranks = 1;
  int32_t max_tag = 0;
  /// The program has started MPI, and sees to its end.
  int32_t was_started = 0;
  /// It has, but may be called by one thread only.
  int32_t is_single_threaded = 0;
};

/// A send or receive that is over.
struct MpiDone {
  void* owner = nullptr;
  int32_t is_failed = 0;  ///< or was cancelled
};

/// What a plug-in can do. New functions go to the end, with a new version.
struct MpiPlugin {
  uint32_t version;
  const char* name;  ///< "Open MPI"

  int32_t (*start)(MpiFacts* facts, char* problem);
  void (*finish)();

  /// A communicator of the first ranks, all of which call it.
  int32_t (*make_group)(int32_t num_ranks, void** group, char* problem);
  void (*free_group)(void* group);
  /// That of all ranks of the job.
  void* (*whole_group)();

  /// Both report to `poll` with their owner, unless `is_done` says that they are over already.
  int32_t (*send)(void* group, int32_t to, int32_t tag, const void* bytes, uint64_t size,
                  void* owner, int32_t* is_done, char* problem);
  int32_t (*receive)(void* group, int32_t from, int32_t tag, void* bytes, uint64_t size,
                     void* owner, int32_t* is_done, char* problem);
  /// How many of those under way are over now; `done` points at them until the next call.
  int32_t (*poll)(const MpiDone** done);
  /// Of a receive: it is over soon, and fails, unless it had begun.
  void (*cancel)(void* owner);

  /// MPI's own blocking calls, for benchmarks: there and back.
  int32_t (*ping_pong)(void* group, int32_t other, int32_t begins, const void* out, void* in,
                       uint64_t size, int64_t rounds);

  /// Whether a message is there that no receive was posted for.
  int32_t (*probe)(void* group, int32_t from, int32_t tag);

  /// Until all ranks of the job are here; not 0 if MPI says that they are not. Before `finish`:
  /// over UCX's TCP, MPICH hangs in it when one rank is through before another begins.
  int32_t (*wait_for_all)();
};

using GetMpiPlugin = const MpiPlugin* (*)();

}  // namespace stagecraft::detail
