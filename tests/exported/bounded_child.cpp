#include "tests/exported/bounded_child.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <new>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace stagecraft {

namespace {

/// Memory that both processes see.
struct Shared {
  uint64_t step = 0;
  bool is_done = false;
  char what[4000] = {};
};

class Notes : public ChildNotes {
 public:
  Notes(Shared& shared, unsigned seconds) : shared_(shared), seconds_(seconds) {}
  void begin(uint64_t step) override {
    shared_.step = step;
    ::alarm(seconds_);
  }

 private:
  Shared& shared_;
  unsigned seconds_;
};

void limit_memory(std::size_t more) {
  if (kIsSanitized) return;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<std::size_t>(::getpagesize()) + more;
  const rlimit both{limit, limit};
  ::setrlimit(RLIMIT_AS, &both);
}

void run_child(Shared& shared, std::size_t memory, unsigned seconds,
               const std::function<void(ChildNotes&)>& body) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  limit_memory(memory);
  Notes notes(shared, seconds);
  try {
    notes.begin(0);
    body(notes);
    shared.is_done = true;
  } catch (const std::exception& error) {
    std::strncpy(shared.what, error.what(), sizeof(shared.what) - 1);
  } catch (...) {
    std::strncpy(shared.what, "something that is no std::exception", sizeof(shared.what) - 1);
  }
}

}  // namespace

ChildResult run_bounded(std::size_t memory, unsigned seconds,
                        const std::function<void(ChildNotes&)>& body) {
  void* both =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (both) Shared;
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    run_child(*shared, memory, seconds, body);
    std::cout.flush();
    ::_exit(0);
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  ChildResult result;
  result.is_done = shared->is_done && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  result.step = shared->step;
  result.peak_memory = static_cast<std::size_t>(used.ru_maxrss) * 1024;
  if (WIFSIGNALED(status)) {
    result.what = WTERMSIG(status) == SIGALRM
                      ? fmt::format("it took more than {} s", seconds)
                      : fmt::format("it died: {}", ::strsignal(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    result.what = fmt::format("it left with {}", WEXITSTATUS(status));
  } else {
    result.what = shared->what;
  }
  ::munmap(both, sizeof(Shared));
  return result;
}

}  // namespace stagecraft
