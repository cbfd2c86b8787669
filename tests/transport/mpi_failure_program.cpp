// A process of a job that something happens to; mpi_failure_test.py starts and strikes it.
//
//   mpi_failure_program MODE FOLDER [RANK] [SILENCE_MS]
//
// Every rank writes FOLDER/ready.RANK with its process number once all have met, and goes on to
// send values around the ring until something happens to RANK. What is thrown is printed as "rank R
// threw TYPE at SECONDS: MESSAGE", by the clock of the machine, and the process ends with 3.
//
//   mpi_failure_program processes FOLDER
//
// Looks at other processes with no file left to open; without MPI.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/mpi/join_mpi.h"
#include "stagecraft/transport/mpi/mpi_progress.h"
#include "stagecraft/transport/wire/peer_processes.h"
#include "tests/support/processes.h"

using namespace stagecraft;

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string mode;
  std::string folder;
  int victim = -1;
  int silence_ms = 3000;
};

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

void go_around(Transport& transport, int32_t round, int64_t numbers) {
  const Rank next((transport.rank().value() + 1) % transport.num_ranks());
  const Rank previous((transport.rank().value() + transport.num_ranks() - 1) %
                      transport.num_ranks());
  const TransferId id{static_cast<uint64_t>(round), Direction::kForward, StageId(0), StageId(1),
                      MicrobatchId(0)};
  const auto receive = transport.post_receive(previous, id);
  const auto sent = transport.post_send(next, id, at::ones({numbers}));
  transport.wait_receive(receive, soon());
  transport.wait_send(sent, soon());
}

// What a program does that calls MPI itself.
using Init = int (*)(int*, char***, int, int*);
using Finalize = int (*)();
void* mpi_function(const char* name) {
  const bool is_open = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  void* const library = dlopen(is_open ? "libmpi.so.40" : "libmpich.so.12", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return dlsym(library, name);
}

// As the launcher says it: there may be no world.
const char* own_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* const rank = std::getenv(name)) return rank;
  }
  return "?";
}

// No more files than are open now and `more`.
void limit_files(rlim_t more) {
  const int next = dup(STDERR_FILENO);
  close(next);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next) + more;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The ways in which looking at a process can fail.
int look_at_processes() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    std::_Exit(0);
  }
  const auto here = stagecraft::detail::ProcessName::of_this();
  auto other = here;
  other.pid = child;
  // Its own start is not this process's: a number that is used again.
  other.start = here.start + 1'000'000;
  std::printf("another one: %d\n", stagecraft::detail::has_ended(other) ? 1 : 0);
  limit_files(1);
  // The one file that can be opened is the process itself, not what /proc says of it.
  std::printf("unknown: %d\n", stagecraft::detail::has_ended(other) ? 1 : 0);
  {
    const stagecraft::detail::PeerProcesses watch({here, other}, Rank(0), [](Rank) {});
  }
  std::printf("done watching\n");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return 0;
}

// A child that knows nothing of MPI and ends as usual.
void fork_and_wait() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    std::exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) {
    throw std::runtime_error("the child did not end: " + std::to_string(status));
  }
}

// A rank that joins after the other ranks have given up must not join a world.
void come_too_late(JoinOptions options, bool is_victim) {
  if (is_victim) sleep(2);
  options.join_timeout = std::chrono::milliseconds(500);
  const auto begin = Clock::now();
  try {
    const auto transport = join_mpi(options);
    std::printf("joined\n");
  } catch (const TimeoutError& error) {
    const bool is_in_time = Clock::now() - begin < std::chrono::milliseconds(is_victim ? 400 : 900);
    std::printf("%s: %s\n", is_in_time ? "in time" : "late", error.what());
  }
  std::fflush(stdout);
}

void run(const Arguments& arguments) {
  constexpr int kThreadMultiple = 3;
  if (arguments.mode == "own_single" || arguments.mode == "own_multiple") {
    int level = 0;
    reinterpret_cast<Init>(mpi_function("MPI_Init_thread"))(
        nullptr, nullptr, arguments.mode == "own_single" ? 0 : kThreadMultiple, &level);
  }
  JoinOptions options;
  options.transport.max_silence = std::chrono::milliseconds(arguments.silence_ms);
  options.transport.linger = std::chrono::milliseconds(500);
  options.join_timeout = std::chrono::seconds(10);
  const bool is_victim =
      stagecraft::detail::MpiProgress::get(soon()).facts().rank == arguments.victim;
  if (arguments.mode == "version" && is_victim) options.fingerprint = {{"version", "0.0.1"}};
  if (arguments.mode == "late" && is_victim) {
    sleep(4);
    return;
  }
  if (arguments.mode == "late") options.join_timeout = std::chrono::milliseconds(500);
  if (arguments.mode == "again") come_too_late(options, is_victim);
  const auto joined = join_mpi(options);
  Transport& transport = *joined;
  transport.barrier(soon());
  if (arguments.mode == "fork") fork_and_wait();
  const auto name = arguments.folder + "/ready." + std::to_string(transport.rank().value());
  std::ofstream(name + ".new") << getpid() << "\n";
  std::rename((name + ".new").c_str(), name.c_str());
  for (int32_t round = 0;; ++round) {
    go_around(transport, round, round % 3 == 0 ? 500'000 : 100);
    const bool ends = arguments.mode == "clean" || arguments.mode == "fork" ||
                      arguments.mode == "again" || arguments.mode == "own_multiple";
    if (round == 20 && ends) break;
    if (round < 20 || !is_victim) continue;
    if (arguments.mode == "throw") throw std::runtime_error("the disk is full");
    if (arguments.mode == "uncaught") throw std::runtime_error("the disk is full");
    if (arguments.mode == "exit") std::exit(4);
    if (arguments.mode == "leave") return;
  }
  transport.barrier(soon());
  if (transport.rank() == Rank(0)) std::printf("all went around\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 1;
  Arguments arguments{argv[1], argv[2]};
  if (argc > 3) arguments.victim = std::atoi(argv[3]);
  if (argc > 4) arguments.silence_ms = std::atoi(argv[4]);
  if (arguments.mode == "processes") return look_at_processes();
  if (arguments.mode == "uncaught") {
    run(arguments);
    return 0;
  }
  try {
    run(arguments);
  } catch (const std::exception& error) {
    const std::chrono::duration<double> now = Clock::now().time_since_epoch();
    std::printf("rank %s threw %s at %.4f: %s\n", own_rank(), type_of(error).c_str(), now.count(),
                error.what());
    std::fflush(stdout);
    return 3;
  }
  if (arguments.mode == "own_multiple") {
    reinterpret_cast<Finalize>(mpi_function("MPI_Finalize"))();
  }
  return 0;
}
