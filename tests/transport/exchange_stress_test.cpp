// Random transfers, collectives, aborts, time-outs and recoveries on eight threads, from printed
// seeds. Meant for ThreadSanitizer as well.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/transport/core/exchange.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft {
namespace {

constexpr int32_t kRanks = 8;

// Counts the living, so that a lost one is seen.
class Counted {
 public:
  Counted() = default;
  explicit Counted(int value) : value_(std::make_unique<int>(value)) { ++living; }
  Counted(Counted&& other) noexcept = default;
  Counted& operator=(Counted&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Counted() {
    if (value_) --living;
  }
  int value() const { return value_ ? *value_ : -1; }

  static inline std::atomic<int> living{0};

 private:
  std::unique_ptr<int> value_;
};

struct Planned {
  Rank from;
  Rank to;
  TransferId id;
  int value = 0;
};

// The transfers of one round; the same identities come in every round.
std::vector<Planned> make_plan(std::mt19937& random) {
  std::vector<Planned> plan;
  const int count = static_cast<int>(random() % 200);
  for (int i = 0; i < count; ++i) {
    plan.push_back({Rank(static_cast<int32_t>(random() % kRanks)),
                    Rank(static_cast<int32_t>(random() % kRanks)), values_of(i),
                    static_cast<int>(random() % 1000)});
  }
  return plan;
}

// One rank's part: its posts in random order, each wait somewhere after its post.
void take_part(detail::Exchange<Counted>& exchange, Rank rank, const std::vector<Planned>& plan,
               bool fails, std::mt19937 random) {
  struct Open {
    PendingPtr pending;
    const Planned* planned = nullptr;
    bool is_send = false;
  };
  std::vector<std::pair<const Planned*, bool>> posts;
  for (const auto& planned : plan) {
    if (planned.from == rank) posts.emplace_back(&planned, true);
    if (planned.to == rank) posts.emplace_back(&planned, false);
  }
  std::shuffle(posts.begin(), posts.end(), random);
  const auto failing_at = fails ? random() % (posts.size() + 1) : posts.size() + 1;
  std::vector<Open> open;
  for (std::size_t i = 0; i <= posts.size(); ++i) {
    if (i == failing_at) {
      exchange.abort({rank, "rank " + to_string(rank) + " gave up"});
      exchange.post_receive(rank, rank, values_of(-1));  // throws
      FAIL() << "posted in an aborted world";
    }
    if (i == posts.size()) break;
    const auto [planned, is_send] = posts[i];
    auto pending = is_send
                       ? exchange.post_send(rank, planned->to, planned->id, Counted(planned->value))
                       : exchange.post_receive(rank, planned->from, planned->id);
    open.push_back({std::move(pending), planned, is_send});
  }
  exchange.gather(rank, "barrier", Counted(), soon());
  std::shuffle(open.begin(), open.end(), random);
  for (const auto& [pending, planned, is_send] : open) {
    if (is_send) {
      exchange.wait_send(rank, pending, soon());
    } else {
      EXPECT_EQ(exchange.wait_receive(rank, pending, soon()).payload.value(), planned->value);
    }
  }
}

void run_rounds(unsigned seed, bool zero_buffering, std::chrono::microseconds spin, int rounds) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  detail::Exchange<Counted> exchange(kRanks, {.zero_buffering = zero_buffering, .spin = spin});
  int failed_rounds = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(seed + static_cast<unsigned>(round));
    const auto plan = make_plan(random);
    std::vector<bool> fails(kRanks);
    for (auto&& rank_fails : fails) rank_fails = random() % 12 == 0;
    const bool any = std::any_of(fails.begin(), fails.end(), [](bool fail) { return fail; });
    failed_rounds += any ? 1 : 0;
    std::atomic<int> threw{0};
    std::mutex mutex;
    std::vector<std::string> messages;
    run_ranks(kRanks, [&](Rank rank) {
      const auto place = static_cast<unsigned>(rank.value());
      try {
        take_part(exchange, rank, plan, fails[place], std::mt19937(seed ^ (place * 77777U)));
        EXPECT_FALSE(fails[place]);
      } catch (const PeerError& error) {
        ++threw;
        const std::lock_guard lock(mutex);
        messages.emplace_back(error.what());
      }
      if (any || rank.value() == 0) {
        try {
          exchange.recover(rank, any ? soon() : Deadline::after(std::chrono::microseconds(50)));
          EXPECT_TRUE(any);
        } catch (const TimeoutError&) {
          EXPECT_FALSE(any);
        }
      }
    });
    EXPECT_EQ(threw.load() > 0, any) << "round " << round;
    // The first reason is the same for all.
    for (const auto& message : messages) EXPECT_EQ(message, messages.front());
    EXPECT_EQ(exchange.reason(), nullptr);
    if (testing::Test::HasFailure()) return;
    ASSERT_EQ(Counted::living.load(), 0) << "round " << round;
  }
  EXPECT_GT(failed_rounds, 0);
  EXPECT_LT(failed_rounds, rounds);
}

TEST(ExchangeStress, Asleep) {
  run_rounds(1, false, std::chrono::microseconds(0), 150);
}
TEST(ExchangeStress, Spinning) {
  run_rounds(2, false, std::chrono::microseconds(20), 150);
}
TEST(ExchangeStress, WithoutBuffering) {
  run_rounds(3, true, std::chrono::microseconds(0), 150);
}

TEST(ExchangeStress, LeavingAtRandomNeverLeavesAnyoneWaiting) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    detail::Exchange<Counted> exchange(kRanks, {.zero_buffering = seed % 2 == 1, .spin = {}});
    std::mt19937 random(seed);
    const auto plan = make_plan(random);
    const Rank leaver(static_cast<int32_t>(random() % kRanks));
    const auto begin = Deadline::Clock::now();
    run_ranks(kRanks, [&](Rank rank) {
      if (rank == leaver) {
        exchange.leave(rank);
        return;
      }
      try {
        take_part(exchange, rank, plan, false,
                  std::mt19937(seed ^ static_cast<unsigned>(rank.value())));
        ADD_FAILURE() << "met a rank that had left";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peer(), leaver) << error.what();
      }
    });
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
    for (Rank rank(0); rank.value() < kRanks; ++rank) exchange.leave(rank);
    ASSERT_EQ(Counted::living.load(), 0);
  }
}

}  // namespace
}  // namespace stagecraft
