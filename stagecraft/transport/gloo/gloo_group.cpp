#include "stagecraft/transport/gloo/gloo_group.h"

#include <sched.h>

// libtorch contains gloo, but not its headers: see gloo_declarations.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/environment.h"

namespace stagecraft::detail {
namespace {

// Threads that are created in this scope do not preempt other threads when they wake (SCHED_BATCH).
//
// gloo's I/O thread busy-polls while a different thread holds the connection. If it preempted that
// thread on wake-up, it would spin for the rest of its time slice. That was half of the time of a
// small action (560 µs against 300 µs with 1F1B on two cores).
class PatientThreads {
 public:
  PatientThreads() : before_(sched_getscheduler(0)) {
    if (before_ == SCHED_OTHER) set(SCHED_BATCH);
  }
  ~PatientThreads() {
    if (before_ == SCHED_OTHER) set(SCHED_OTHER);
  }
  PatientThreads(const PatientThreads&) = delete;
  PatientThreads& operator=(const PatientThreads&) = delete;

 private:
  static void set(int policy) {
    const sched_param priority{};
    sched_setscheduler(0, policy, &priority);
  }

  int before_;
};

// The device for an address. Without an address, chosen as c10d's own groups do.
std::shared_ptr<gloo::transport::Device> device_at(const std::string& address) {
  using Group = c10d::ProcessGroupGloo;
  if (!address.empty()) return Group::createDeviceForHostname(address);
  if (const auto name = find_variable("GLOO_SOCKET_IFNAME")) {
    return Group::createDeviceForInterface(name->substr(0, name->find(',')));
  }
  return Group::createDefaultDevice();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  Rank rank, int32_t num_ranks,
                                                  const std::string& address,
                                                  std::chrono::milliseconds timeout) {
  using Group = c10d::ProcessGroupGloo;
  const PatientThreads patient;
  auto options = Group::Options::create(timeout);
  try {
    options->devices.push_back(device_at(address));
  } catch (const std::exception&) {
    throw ArgumentError((address.empty() ? "this machine's name" : address) +
                        " is not an address of this machine");
  }
  // gloo's worker threads run its collectives, which are not used.
  options->threads = 1;
  return c10::make_intrusive<Group>(store, rank.value(), num_ranks, options);
}

}  // namespace stagecraft::detail
