#pragma once

#include <cstddef>
#include <cstdint>

/// The interface between the library and its plug-ins, one for each MPI. Every MPI has its own
/// mpi.h and binary interface. So one source (mpi_plugin.cpp) is compiled against each, and the
/// plug-in is loaded when a program was started by that MPI.
///
/// One thread at a time calls it. A function that fails returns a number other than 0 and writes a
/// text into `problem`, which has room for kMpiProblemBytes.
namespace stagecraft::detail {

constexpr uint32_t kMpiPluginVersion = 3;
constexpr std::size_t kMpiProblemBytes = 512;
constexpr const char* kMpiPluginFunction = "stagecraft_mpi_plugin";

struct MpiFacts {
  int32_t rank = 0;
  int32_t num_ranks = 1;
  int32_t max_tag = 0;
  /// The program has initialised MPI itself, and finalizes it.
  int32_t was_started = 0;
  /// The program has initialised MPI for one thread only.
  int32_t is_single_threaded = 0;
};

/// A send or receive that has ended.
struct MpiDone {
  void* owner = nullptr;
  int32_t is_failed = 0;  ///< it failed or was cancelled
};

/// The functions of a plug-in. New functions go to the end, with a new version.
struct MpiPlugin {
  uint32_t version;
  const char* name;  ///< "Open MPI"

  int32_t (*start)(MpiFacts* facts, char* problem);
  void (*finish)();

  /// Creates a communicator of the first ranks, which all call it.
  int32_t (*make_group)(int32_t num_ranks, void** group, char* problem);
  void (*free_group)(void* group);
  /// The communicator of all ranks of the job.
  void* (*whole_group)();

  /// Completion is reported by `poll` with the owner, unless `is_done` is set at once.
  int32_t (*send)(void* group, int32_t to, int32_t tag, const void* bytes, uint64_t size,
                  void* owner, int32_t* is_done, char* problem);
  int32_t (*receive)(void* group, int32_t from, int32_t tag, void* bytes, uint64_t size,
                     void* owner, int32_t* is_done, char* problem);
  /// The number of sends and receives that have ended since the last call. `done` points to them
  /// until the next call.
  int32_t (*poll)(const MpiDone** done);
  /// Cancels a receive: it fails soon, unless a message has matched it.
  void (*cancel)(void* owner);

  /// MPI's blocking calls, for benchmarks: a number of round trips.
  int32_t (*ping_pong)(void* group, int32_t other, int32_t begins, const void* out, void* in,
                       uint64_t size, int64_t rounds);

  /// Whether a message has arrived for which no receive is posted.
  int32_t (*probe)(void* group, int32_t from, int32_t tag);

  /// Waits for all ranks of the job; not 0 if MPI reports an error. Called before `finish`: over
  /// UCX's TCP, MPICH hangs in MPI_Finalize if a rank has completed it before a different rank
  /// begins.
  int32_t (*wait_for_all)();
};

using GetMpiPlugin = const MpiPlugin* (*)();

}  // namespace stagecraft::detail
