// Transfers between processes: a ping-pong of gloo, Open MPI and MPICH against ours over each, in
// the same two processes. Also steps of two ranks over each, against PyTorch's over gloo.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "benchmarks/gloo_pair.h"
#include "benchmarks/harness.h"
#include "benchmarks/mpi_pair.h"
#include "benchmarks/step_ranks.h"

using namespace stagecraft;

namespace {

// A ping-pong of both processes of a pair, through the communication library alone or through our
// transport.
template <typename Pair>
bench::Timed contender(Pair& pair, bool is_raw, int64_t bytes) {
  return [&pair, is_raw, bytes](int iterations) { return pair.run({is_raw, bytes, iterations}); };
}

template <typename Pair>
void add_row(bench::Suite& suite, Pair& pair, const std::string& library, const std::string& size,
             int64_t bytes) {
  suite.compare("there and back, " + size, contender(pair, false, bytes),
                {{.name = library, .run = contender(pair, true, bytes), .goal = 1.2}});
}

// The processes of an MPI are started by mpirun.
void add_mpi_rows(bench::Suite& suite, const bench::MpiLauncher& launcher) {
  try {
    bench::MpiPair pair(launcher);
    add_row(suite, pair, launcher.name, "1 KB", 1024);
    add_row(suite, pair, launcher.name, "16 MB", 16 * 1024 * 1024);
  } catch (const std::exception& error) {
    std::printf("%s: not measured: %s\n", launcher.name.c_str(), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == bench::kMpiWorker) return bench::run_mpi_worker();
  if (first == bench::kStepWorker) return bench::run_step_worker(argc, argv);
  return bench::run_suite("transports", argc, argv, [](bench::Suite& suite) {
    {
      bench::GlooPair pair;
      for (const auto& [size, bytes] : {std::pair<const char*, int64_t>{"1 KB", 1024},
                                        {"64 KB", 64 * 1024},
                                        {"1 MB", 1024 * 1024},
                                        {"16 MB", 16 * 1024 * 1024}}) {
        add_row(suite, pair, "gloo", size, bytes);
      }
    }
    for (const auto& launcher : bench::mpi_launchers()) add_mpi_rows(suite, launcher);
    bench::compare_steps(suite);
  });
}
