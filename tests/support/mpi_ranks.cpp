#include "tests/support/mpi_ranks.h"

#include <chrono>
#include <exception>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <ATen/core/List.h>

#include "stagecraft/transport/mpi/mpi_progress.h"
#include "tests/support/processes.h"

namespace stagecraft {
namespace {

std::unique_ptr<Transport>& everyone() {
  static std::unique_ptr<Transport> transport;
  return transport;
}

// Tests have limits of their own; this is for those that hang.
Deadline patience() {
  return Deadline::after(std::chrono::seconds(100));
}

Transport& waiting_room() {
  if (!everyone()) {
    JoinOptions options;
    options.transport.max_silence = std::chrono::seconds(0);
    everyone() = join_mpi(options);
  }
  return *everyone();
}

struct Outcome {
  std::string type;  ///< of what was thrown; empty: nothing
  std::string message;
};

// The one that others threw because of.
void judge(const Outcome& mine) {
  const ProcessEnd* first = nullptr;
  std::vector<ProcessEnd> ends;
  c10::List<std::string> words({mine.type, mine.message});
  for (const auto& theirs : waiting_room().all_gather(words, patience())) {
    const auto texts = theirs.toListRef();
    ProcessEnd end;
    end.type = texts[0].toStringRef();
    end.message = texts[1].toStringRef();
    ends.push_back(end);
  }
  for (const auto& end : ends) {
    if (end.type.empty()) continue;
    if (first == nullptr || first->type == "PeerError") first = &end;
  }
  if (first != nullptr) rethrow(*first);
}

}  // namespace

void MpiRanks::run(int32_t ranks, const ProcessTransportOptions& options,
                   const std::function<void(Transport&)>& body) {
  run_owning(ranks, options, [&](std::unique_ptr<Transport>& transport) {
    try {
      body(*transport);
    } catch (const std::exception& error) {
      transport->abort({transport->rank(), error.what(), std::current_exception()});
      throw;
    }
  });
}

void MpiRanks::run_owning(int32_t ranks, const ProcessTransportOptions& options,
                          const std::function<void(std::unique_ptr<Transport>&)>& body) {
  if (waiting_room().num_ranks() < ranks) {
    GTEST_SKIP() << "needs " << ranks << " processes, the job has " << waiting_room().num_ranks();
  }
  Outcome mine;
  if (waiting_room().rank().value() < ranks) {
    try {
      JoinOptions world;
      world.num_ranks = ranks;
      world.join_timeout = std::chrono::seconds(30);
      world.transport = options;
      auto transport = join_mpi(world);
      body(transport);
    } catch (const std::exception& error) {
      mine = {type_of(error), error.what()};
    }
  }
  judge(mine);
}

Rank MpiRanks::job_rank() {
  return Rank(detail::MpiProgress::get(patience()).facts().rank);
}

int32_t MpiRanks::job_size() {
  return detail::MpiProgress::get(patience()).facts().num_ranks;
}

bool MpiRanks::is_any(bool here) {
  bool any = false;
  for (const auto& theirs : waiting_room().all_gather(here, patience())) {
    any = any || theirs.toBool();
  }
  return any;
}

void MpiRanks::leave() {
  everyone().reset();
}

}  // namespace stagecraft
