#include "benchmarks/mpi_pair.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "stagecraft/transport/mpi/join_mpi.h"
#include "stagecraft/transport/mpi/mpi_progress.h"

namespace stagecraft::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Ping-pong with MPI's own blocking calls, on the calling thread.
void play_mpi(const Task& task, Rank rank) {
  auto& mpi = detail::MpiProgress::get(Deadline::after(std::chrono::seconds(60)));
  const auto out = at::ones({task.bytes}, at::kByte);
  const auto in = at::empty({task.bytes}, at::kByte);
  mpi.run_here([&] {
    const auto& plugin = mpi.plugin();
    plugin.ping_pong(plugin.whole_group(), 1 - rank.value(), rank == Rank(0) ? 1 : 0,
                     out.const_data_ptr(), in.mutable_data_ptr(), static_cast<uint64_t>(task.bytes),
                     task.rounds);
  });
}

std::string read_line(int fd) {
  std::string line;
  char next = 0;
  while (read(fd, &next, 1) == 1) {
    if (next == '\n') return line;
    line += next;
  }
  throw std::runtime_error("its processes have ended: " + line);
}

}  // namespace

std::vector<MpiLauncher> mpi_launchers() {
  std::vector<MpiLauncher> launchers = {
      {"Open MPI",
       {},
       {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}},
      {"MPICH",
       {},
       {"-env", "MPIR_CVAR_NOLOCAL", "1", "-env", "UCX_TLS", "tcp,self", "-env", "UCX_NET_DEVICES",
        "lo"}}};
#ifdef SC_BENCH_OPENMPI_RUN
  launchers[0].command = {SC_BENCH_OPENMPI_RUN, "--oversubscribe", "--bind-to", "none"};
#endif
#ifdef SC_BENCH_MPICH_RUN
  launchers[1].command = {SC_BENCH_MPICH_RUN};
#endif
  return launchers;
}

MpiPair::MpiPair(const MpiLauncher& launcher) {
  if (launcher.command.empty()) throw std::runtime_error("it was not found when this was built");
  std::array<int, 2> to{};
  std::array<int, 2> from{};
  if (pipe(to.data()) != 0 || pipe(from.data()) != 0) throw std::runtime_error("no pipe");
  launcher_ = fork();
  if (launcher_ == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    std::array<char, 4096> self{};
    if (readlink("/proc/self/exe", self.data(), self.size() - 1) < 0) _exit(1);
    auto command = launcher.command;
    for (const char* word : {"-np", "2", static_cast<const char*>(self.data()), kMpiWorker}) {
      command.emplace_back(word);
    }
    std::vector<char*> words;
    for (auto& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  to_ = to[1];
  from_ = from[0];
  read_line(from_);
}

MpiPair::~MpiPair() {
  close(to_);
  close(from_);
  waitpid(launcher_, nullptr, 0);
}

double MpiPair::run(const Task& task) {
  const auto line = std::to_string(task.is_raw ? 1 : 0) + " " + std::to_string(task.bytes) + " " +
                    std::to_string(task.rounds) + "\n";
  if (write(to_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw std::runtime_error("its processes have ended");
  }
  return std::stod(read_line(from_));
}

int run_mpi_worker() {
  JoinOptions options;
  options.transport.max_silence = std::chrono::seconds(0);
  const auto joined = join_mpi(options);
  Transport& transport = *joined;
  const bool is_first = transport.rank() == Rank(0);
  if (is_first) std::cout << "ready" << std::endl;
  for (uint64_t step = 0;; ++step) {
    Task task;
    int raw = 0;
    if (is_first && !(std::cin >> raw >> task.bytes >> task.rounds)) task.rounds = 0;
    const auto told = transport.broadcast(at::tensor({int64_t{raw}, task.bytes, task.rounds}),
                                          Rank(0), Deadline::after(std::chrono::hours(1)));
    const at::Tensor& words = told.toTensor();
    task = {words[0].item<int64_t>() != 0, words[1].item<int64_t>(), words[2].item<int64_t>()};
    if (task.rounds == 0) break;
    const auto play_rounds = [&](int64_t rounds, uint64_t number) {
      const Task some{task.is_raw, task.bytes, rounds};
      task.is_raw ? play_mpi(some, transport.rank()) : play(transport, some, number);
    };
    // One round before the measurement, because the other process may still be waking up.
    play_rounds(1, 2 * step);
    const auto begin = Clock::now();
    play_rounds(task.rounds, 2 * step + 1);
    const std::chrono::duration<double> took = Clock::now() - begin;
    if (is_first) std::cout << took.count() << std::endl;
  }
  return 0;
}

}  // namespace stagecraft::bench
