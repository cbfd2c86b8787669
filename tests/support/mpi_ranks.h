#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "stagecraft/transport/mpi/join_mpi.h"

namespace stagecraft {

/// Ranks that mpirun has started. Each process runs the whole test program, all the same tests in
/// the same order (mpi_main.cpp); a test that needs some ranks runs on the first of them while the
/// others wait for its end.
class MpiRanks {
 public:
  /// Runs `body` on the first `ranks` processes of the job, in a new world; called by all
  /// processes. A rank that throws aborts the world; what the first one threw is rethrown on all
  /// processes. A job with fewer processes skips the test, which is not a pass.
  static void run(int32_t ranks, const ProcessTransportOptions& options,
                  const std::function<void(Transport&)>& body);
  /// The same, for bodies that destroy their end.
  static void run_owning(int32_t ranks, const ProcessTransportOptions& options,
                         const std::function<void(std::unique_ptr<Transport>&)>& body);

  /// This process's rank in the job, and the number of ranks. Both start MPI.
  static Rank job_rank();
  static int32_t job_size();

  /// Whether this holds on any process; called by all. For the end of the program.
  static bool is_any(bool here);
  /// Leaves the world in which processes wait for each other; nothing of the above after it.
  static void leave();
};

}  // namespace stagecraft
