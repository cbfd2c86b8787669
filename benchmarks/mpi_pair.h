#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "benchmarks/ping_pong.h"

namespace stagecraft::bench {

/// How an MPI starts two processes.
struct MpiLauncher {
  std::string name;                  ///< "Open MPI"
  std::vector<std::string> command;  ///< mpirun and its options; empty: that MPI is not here
  /// Options behind these, with which processes of one machine use the interface `lo`, not memory.
  std::vector<std::string> by_network = {};
};

/// Of Open MPI and MPICH.
std::vector<MpiLauncher> mpi_launchers();

/// Two processes of this program, started by mpirun, that play ping-pong when asked to.
class MpiPair {
 public:
  /// Throws std::runtime_error that says what is missing.
  explicit MpiPair(const MpiLauncher& launcher);
  ~MpiPair();
  MpiPair(const MpiPair&) = delete;
  MpiPair& operator=(const MpiPair&) = delete;

  /// How many seconds it took.
  double run(const Task& task);

 private:
  pid_t launcher_ = -1;
  int to_ = -1;
  int from_ = -1;
};

/// The argument with which the processes are started, and what they do then.
constexpr const char* kMpiWorker = "--mpi-worker";
int run_mpi_worker();

}  // namespace stagecraft::bench
