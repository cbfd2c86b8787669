#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "benchmarks/ping_pong.h"

namespace stagecraft::bench {

/// The commands with which an MPI starts two processes.
struct MpiLauncher {
  std::string name;                  ///< "Open MPI"
  std::vector<std::string> command;  ///< mpirun and its options; empty: the MPI is not installed
  /// Options after these, which make processes of one machine use the interface `lo`, not shared
  /// memory.
  std::vector<std::string> by_network = {};
};

/// The launchers of Open MPI and MPICH.
std::vector<MpiLauncher> mpi_launchers();

/// Two processes of this program, started by mpirun, that run a ping-pong on request.
class MpiPair {
 public:
  /// Throws std::runtime_error, which says what is missing.
  explicit MpiPair(const MpiLauncher& launcher);
  ~MpiPair();
  MpiPair(const MpiPair&) = delete;
  MpiPair& operator=(const MpiPair&) = delete;

  /// Runs a ping-pong and returns its seconds.
  double run(const Task& task);

 private:
  pid_t launcher_ = -1;
  int to_ = -1;
  int from_ = -1;
};

/// The argument with which the processes are started, and the function that they then run.
constexpr const char* kMpiWorker = "--mpi-worker";
int run_mpi_worker();

}  // namespace stagecraft::bench
