// Ranks that are killed, stopped, leave or throw at any action of any schedule, over processes:
// each survivor throws an error that names the rank, soon, and no process stays behind.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <random>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/runtime/fault_rank.h"
#include "tests/support/gloo_ranks.h"

namespace stagecraft {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlower = 5;
#else
constexpr double kSlower = 1;
#endif

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMaxRanks = 8;

int64_t now() {
  return Clock::now().time_since_epoch().count();
}

/// When things happened, for the parent to see.
struct Times {
  std::atomic<int64_t> struck{0};
  std::atomic<int64_t> thrown[kMaxRanks]{};
};

/// Memory that forked processes share.
class SharedTimes {
 public:
  SharedTimes()
      : times_(new (mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Times) {}
  ~SharedTimes() { munmap(times_, sizeof(Times)); }
  SharedTimes(const SharedTimes&) = delete;
  SharedTimes& operator=(const SharedTimes&) = delete;
  Times* operator->() const { return times_; }

 private:
  Times* times_;
};

/// Milliseconds from the strike until each survivor threw.
std::vector<double> run_fault(const Fault& fault) {
  SCOPED_TRACE(to_string(fault));
  const int32_t ranks = fault.schedule.ranks;
  const SharedTimes times;
  const GlooRanks world(ranks);
  Processes processes(ranks, [&](int32_t i) {
    auto options = world.options(i);
    // What is stopped is only found by its silence.
    options.transport.max_silence = std::chrono::seconds(1);
    const auto joined = join_gloo(options);
    try {
      train_until_fault(*joined, fault, [&] { times->struck = now(); });
    } catch (...) {
      times->thrown[i] = now();
      throw;
    }
  });
  const bool stays = fault.strike == Fault::Strike::kStop;
  const auto ends =
      processes.wait(stays ? std::vector<int32_t>{fault.victim} : std::vector<int32_t>{});
  std::vector<double> waited;
  for (int32_t i = 0; i < ranks; ++i) {
    if (i == fault.victim) continue;
    const auto& end = ends[static_cast<std::size_t>(i)];
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kThrew) << "rank " << i << ": " << end.message;
    EXPECT_EQ(check_survivor(fault, end.type, end.message), "") << "rank " << i;
    waited.push_back(static_cast<double>(times->thrown[i] - times->struck) / 1e6);
  }
  EXPECT_NE(times->struck, 0);
  return waited;
}

// SC_FAULTS: the number of faults; SC_FAULT_SEED; SC_FAULT_RANKS: the largest number of processes;
// with SC_FAULT_ALL every schedule, otherwise 1F1B and ZBV.
TEST(Faults, EverySurvivorNamesTheRankAtOnce) {
  const auto number = [](const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  const uint64_t runs = number("SC_FAULTS", 12);
  const uint64_t seed = number("SC_FAULT_SEED", std::random_device()());
  const auto most = static_cast<int32_t>(number("SC_FAULT_RANKS", 3));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::vector<ScheduleCase> schedules;
  for (int32_t ranks = 2; ranks <= most; ++ranks) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      const bool is_usual = each.name == "1F1B" || each.name == "ZBVZeroBubble";
      if (is_usual || std::getenv("SC_FAULT_ALL") != nullptr) schedules.push_back(each);
    }
  }
  std::mt19937_64 random(seed);
  std::map<Fault::Strike, std::vector<double>> waited;
  for (uint64_t i = 0; i < runs && !HasFailure(); ++i) {
    const Fault fault = random_fault(random, schedules);
    const std::vector<double> each = run_fault(fault);
    auto& all = waited[fault.strike];
    all.insert(all.end(), each.begin(), each.end());
  }
  for (auto& [strike, times] : waited) {
    std::sort(times.begin(), times.end());
    Fault named;
    named.strike = strike;
    const std::string text = to_string(named);
    const auto begin = text.find("rank 0 ") + 7;
    std::printf("a rank %s: %zu survivors, threw after %.0f ms (median), %.0f ms (worst)\n",
                text.substr(begin, text.find(" at its") - begin).c_str(), times.size(),
                times[times.size() / 2], times.back());
    // The silence after which a rank is lost, and two seconds.
    const double limit = strike == Fault::Strike::kStop ? 3000 : 2000;
    EXPECT_LT(times.back(), limit * kSlower);
  }
}

}  // namespace
}  // namespace stagecraft
