#include "stagecraft/transport/c10d/gloo_group.h"

#include <sched.h>

// gloo's part of libtorch is there, its headers are not: see gloo_declarations.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "stagecraft/base/error.h"

namespace stagecraft::detail {
namespace {

// Threads that are made meanwhile do not push others aside when they wake.
//
// gloo's thread that reads connections asks again and again while another thread uses one. When its
// waking pushes that very thread aside, it does so until its time is up, which takes longer than
// everything else about a message.
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

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  Rank rank, int32_t num_ranks,
                                                  const std::string& address,
                                                  std::chrono::milliseconds timeout) {
  using Group = c10d::ProcessGroupGloo;
  const PatientThreads patient;
  auto options = Group::Options::create(timeout);
  try {
    options->devices.push_back(Group::createDeviceForHostname(address));
  } catch (const std::exception&) {
    throw ArgumentError(address + " is not an address of this machine");
  }
  // They run collectives of gloo's own, of which there are none.
  options->threads = 1;
  return c10::make_intrusive<Group>(store, rank.value(), num_ranks, options);
}

}  // namespace stagecraft::detail
