#include "benchmarks/busy_cores.h"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>

#include "stagecraft/base/error.h"

namespace stagecraft::bench {
namespace {

[[noreturn]] void compute_for_ever(int cpu, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(0);
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpu, &own);
  sched_setaffinity(0, sizeof own, &own);
  for (volatile uint64_t count = 0;;) count = count + 1;
}

}  // namespace

BusyCores::BusyCores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    throw Error("the processors of this process are unknown");
  }
  const pid_t parent = getpid();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const pid_t child = fork();
    if (child < 0) throw Error("no process could be started that keeps a processor busy");
    if (child == 0) compute_for_ever(cpu, parent);
    children_.push_back(child);
  }
}

BusyCores::~BusyCores() {
  for (const pid_t child : children_) kill(child, SIGKILL);
  for (const pid_t child : children_) waitpid(child, nullptr, 0);
}

}  // namespace stagecraft::bench
