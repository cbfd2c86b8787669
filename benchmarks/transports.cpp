// Transfers between processes: the ping-pong of gloo, Open MPI and MPICH beside ours over each, in
// the same two processes; and steps of two ranks over each beside PyTorch's over gloo.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "benchmarks/harness.h"
#include "benchmarks/mpi_pair.h"
#include "benchmarks/ping_pong.h"
#include "benchmarks/step_ranks.h"
#include "stagecraft/transport/c10d/addresses.h"
#include "stagecraft/transport/c10d/join.h"
#include "stagecraft/transport/wire/wire_transport.h"

using namespace stagecraft;
using bench::Task;

namespace {

using Clock = std::chrono::steady_clock;

// One end of a ping-pong, over the engine alone: both sides have the next receive posted before
// they send.
void play_raw(detail::Engine& engine, const Task& task) {
  const bool begins = engine.rank() == Rank(0);
  const Rank other(begins ? 1 : 0);
  constexpr detail::Engine::Tag kTag = 7;
  const auto out = at::ones({task.bytes}, at::kByte);
  // A new tensor for each message, as whoever receives it keeps it.
  auto in = at::empty({task.bytes}, at::kByte);
  auto receive = engine.receive(other, kTag, in);
  std::vector<detail::Engine::WorkPtr> sends;
  for (int64_t i = 0; i < task.rounds; ++i) {
    if (begins) sends.push_back(engine.send(other, kTag, out));
    receive->wait();
    if (i + 1 < task.rounds) {
      in = at::empty({task.bytes}, at::kByte);
      receive = engine.receive(other, kTag, in);
    }
    if (!begins) sends.push_back(engine.send(other, kTag, out));
    if (sends.size() > 1) {
      sends.front()->wait();
      sends.erase(sends.begin());
    }
  }
  for (const auto& send : sends) send->wait();
}

// The two processes' worlds: one for gloo alone, one for ours.
class Pair {
 public:
  Pair(int rank, const std::vector<int>& listeners, const std::vector<uint16_t>& ports)
      : raw_(join(rank, listeners[0], ports[0])),
        ours_(join(rank, listeners[1], ports[1]), detail::WireOptions()) {}

  void run(const Task& task) {
    if (task.is_raw) {
      play_raw(*raw_, task);
    } else {
      bench::play(ours_, task, step_++);
    }
  }

 private:
  static std::unique_ptr<detail::Engine> join(int rank, int listener, uint16_t port) {
    ProcessWorldOptions options;
    options.rank = Rank(rank);
    options.num_ranks = 2;
    options.port = port;
    if (rank == 0) options.listen_fd = listener;
    return detail::join(options);
  }

  std::unique_ptr<detail::Engine> raw_;
  detail::WireTransport ours_;
  uint64_t step_ = 0;
};

void add_rows(bench::Suite& suite, Pair& pair, int to_child, const std::string& name,
              int64_t bytes) {
  const auto contender = [&](bool is_raw) {
    return [&pair, to_child, is_raw, bytes](int iterations) {
      const Task task{is_raw, bytes, iterations};
      if (write(to_child, &task, sizeof(task)) != sizeof(task)) std::terminate();
      const auto begin = Clock::now();
      pair.run(task);
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
  };
  suite.compare("there and back, " + name, contender(false),
                {{.name = "gloo", .run = contender(true), .goal = 1.2}});
}

// An MPI's processes are mpirun's; this one asks them.
void add_mpi_rows(bench::Suite& suite, const bench::MpiLauncher& launcher) {
  try {
    bench::MpiPair pair(launcher);
    const auto contender = [&](bool is_raw, int64_t bytes) {
      return [&pair, is_raw, bytes](int iterations) {
        return pair.run({is_raw, bytes, iterations});
      };
    };
    for (const auto& [name, bytes] :
         {std::pair<const char*, int64_t>{"1 KB", 1024}, {"16 MB", 16 * 1024 * 1024}}) {
      suite.compare(std::string("there and back, ") + name, contender(false, bytes),
                    {{.name = launcher.name, .run = contender(true, bytes), .goal = 1.2}});
    }
  } catch (const std::exception& error) {
    std::printf("%s: not measured: %s\n", launcher.name.c_str(), error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == bench::kMpiWorker) return bench::run_mpi_worker();
  if (first == bench::kStepWorker) return bench::run_step_worker(argc, argv);
  std::vector<int> listeners;
  std::vector<uint16_t> ports;
  for (int i = 0; i < 2; ++i) {
    auto listener = detail::listen_on("127.0.0.1", 0);
    ports.push_back(detail::port_of(listener));
    listeners.push_back(listener.release());
  }
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    for (const int listener : listeners) close(listener);
    close(ends[1]);
    Pair pair(1, listeners, ports);
    Task task;
    while (read(ends[0], &task, sizeof(task)) == sizeof(task) && task.rounds > 0) pair.run(task);
    _exit(0);
  }
  close(ends[0]);
  int result = 1;
  {
    Pair pair(0, listeners, ports);
    result = bench::run_suite("transports", argc, argv, [&](bench::Suite& suite) {
      add_rows(suite, pair, ends[1], "1 KB", 1024);
      add_rows(suite, pair, ends[1], "64 KB", 64 * 1024);
      add_rows(suite, pair, ends[1], "1 MB", 1024 * 1024);
      add_rows(suite, pair, ends[1], "16 MB", 16 * 1024 * 1024);
      for (const auto& launcher : bench::mpi_launchers()) add_mpi_rows(suite, launcher);
      bench::compare_steps(suite);
    });
    close(ends[1]);
  }
  waitpid(child, nullptr, 0);
  return result;
}
