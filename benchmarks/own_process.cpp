#include "benchmarks/own_process.h"

#include <array>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/heap.h"
#include "stagecraft/base/error.h"

namespace stagecraft::bench {
namespace {

double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The kernel's own count of this process; getrusage starts with the parent's peak.
double status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == key + ":" && status >> kib) return kib * 1024;
  }
  throw Error("/proc/self/status has no " + key);
}

using Answer = std::array<double, 4>;

[[noreturn]] void run_child(const std::function<double()>& work, int to_parent) {
  int code = 1;
  try {
    // Forget the peak that was inherited.
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t before = reset_heap_peak();
    rusage start{};
    getrusage(RUSAGE_SELF, &start);
    const double result = work();
    rusage end{};
    getrusage(RUSAGE_SELF, &end);
    const Answer answer = {result, cpu_seconds(end) - cpu_seconds(start),
                           static_cast<double>(heap_peak() - before), status_bytes("VmHWM")};
    if (write(to_parent, answer.data(), sizeof answer) == sizeof answer) code = 0;
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    std::fputc('\n', stderr);
  }
  _exit(code);
}

}  // namespace

Usage run_in_own_process(const std::function<double()>& work) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw Error("cannot make a pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error("cannot fork");
  if (child == 0) run_child(work, ends[1]);
  close(ends[1]);
  Answer answer{};
  const ssize_t got = read(ends[0], answer.data(), sizeof answer);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (got != sizeof answer || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error("the measured work failed");
  }
  return {answer[0], answer[1], answer[2], answer[3]};
}

}  // namespace stagecraft::bench
