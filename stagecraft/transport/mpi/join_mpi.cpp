#include "stagecraft/transport/mpi/join_mpi.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/core/world_state.h"
#include "stagecraft/transport/mpi/mpi_byte_transport.h"
#include "stagecraft/transport/mpi/mpi_progress.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/handshake.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::detail {
namespace {

// A receive is posted before the size of the message is known, and a longer message is an error of
// MPI. A fingerprint has a few hundred bytes, unless the program adds long entries.
constexpr std::size_t kHelloBytes = 64 * 1024;
// The tag of joining, in the communicator of all ranks. The number of ranks is added to it, because
// worlds of different sizes are numbered separately.
constexpr ByteTransport::Tag kHelloTag = 1 << 26;
// Keeps the numbers of worlds of different sizes apart, up to this size.
constexpr uint64_t kMostSizes = 17;
constexpr auto kLook = std::chrono::microseconds(200);
// Additional time after join_timeout: for ranks that have come to confirm, and to create the
// communicator.
constexpr auto kLinger = std::chrono::seconds(5);

/// After its hello, each rank sends kGoesOn or kGivesUp, the same to all ranks.
enum class Word : uint32_t { kHello, kGoesOn, kGivesUp };

struct Hello {
  uint64_t world = 0;  ///< number of the world among those of its size
  Word word = Word::kHello;
  ProcessName process = {};
  Fingerprint fingerprint = {};
  bool ends_mpi_here = false;  ///< this library finalizes MPI, not the program
};

std::string write_hello(const Hello& hello) {
  ByteWriter out;
  out.put(kHandshakeMagic);
  out.put(hello.world);
  out.put(hello.word);
  out.put_text(hello.process.machine);
  out.put_text(hello.process.namespace_);
  out.put(hello.process.pid);
  out.put(hello.process.start);
  out.put(static_cast<uint32_t>(hello.ends_mpi_here));
  write_fingerprint(out, hello.fingerprint);
  return out.take();
}

Hello read_hello(std::string_view text, const Hello& mine) {
  ByteReader in(text);
  if (auto foreign = read_magic(in, mine.fingerprint)) {
    return {mine.world, Word::kHello, {}, std::move(*foreign)};
  }
  Hello hello;
  hello.world = in.get<uint64_t>();
  hello.word = in.get<Word>();
  hello.process.machine = in.get_text();
  hello.process.namespace_ = in.get_text();
  hello.process.pid = in.get<int64_t>();
  hello.process.start = in.get<uint64_t>();
  hello.ends_mpi_here = in.get<uint32_t>() != 0;
  hello.fingerprint = read_fingerprint(in);
  return hello;
}

// Worlds of the same ranks are numbered, so that a message for a world that failed is not taken for
// one of the next world.
uint64_t next_world(int32_t num_ranks) {
  static std::mutex mutex;
  static std::map<int32_t, uint64_t> worlds;
  const std::lock_guard lock(mutex);
  return worlds[num_ranks]++;
}

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

class Joining {
 public:
  explicit Joining(const JoinOptions& options)
      : options_(options),
        deadline_(Deadline::after(options.join_timeout)),
        progress_(MpiProgress::get(deadline_)),
        me_(progress_.facts().rank),
        num_ranks_(options.num_ranks.value_or(progress_.facts().num_ranks)),
        hellos_(static_cast<std::size_t>(std::max(num_ranks_, 0))) {}

  std::unique_ptr<ByteTransport> run() {
    check();
    hellos_[static_cast<std::size_t>(me_)] = say_hello();
    const auto missing = hear(Word::kHello, deadline_);
    const auto difference = missing.empty() ? describe_difference() : "";
    const bool goes_on = missing.empty() && difference.empty();
    // Creating a communicator waits for all ranks and cannot be cancelled. So a rank begins only
    // after all others have confirmed. A rank that gives up says so, too: a rank that joins later
    // then knows that it need not wait.
    say({world_, goes_on ? Word::kGoesOn : Word::kGivesUp});
    if (!goes_on) {
      leave();
      require_agreement(difference);
      throw TimeoutError(fmt::format("rank {} waited {} for {} to join", me_,
                                     describe_wait(join_timeout()), name_ranks(missing)));
    }
    const auto silent = hear(Word::kGoesOn, later());
    // Includes ranks that have confirmed and then given up: this rank may have been delayed.
    add_those_who_say_more();
    require_all_go_on(silent);
    return connect();
  }

 private:
  struct Talk {
    int32_t other;
    at::Tensor bytes;
    MpiWorkPtr work;
  };

  void check() const {
    const auto& facts = progress_.facts();
    require<ArgumentError>(num_ranks_ >= 1 && num_ranks_ <= facts.num_ranks,
                           "a world of {} ranks is not possible in a job of {} ranks", num_ranks_,
                           facts.num_ranks);
    require<ArgumentError>(
        me_ < num_ranks_,
        "rank {} of the job is not among the first {} ranks, which form the world", me_,
        num_ranks_);
    if (progress_.is_stuck()) {
      throw TimeoutError(
          fmt::format("rank {}: {} is still creating a communicator with a rank that did not join; "
                      "until that call returns, this process cannot join a world",
                      me_, progress_.plugin().name));
    }
    // The number of the world is in the upper bits of the tags: messages of an earlier world must
    // not arrive in this one.
    require<ArgumentError>(facts.max_tag >= kLastMpiTag,
                           "this MPI supports tags up to {}, expected at least {}", facts.max_tag,
                           kLastMpiTag);
  }

  Deadline::Clock::duration join_timeout() const { return options_.join_timeout; }
  Deadline later() const {
    const auto latest = Deadline::Clock::time_point::max() - kLinger;
    return Deadline(std::clamp(deadline_.at(), Deadline::Clock::now(), latest) + kLinger);
  }

  Hello say_hello() {
    Hello mine{next_world(num_ranks_), Word::kHello, ProcessName::of_this(),
               fingerprint_of_rank(options_, num_ranks_), progress_.facts().was_started == 0};
    world_ = mine.world;
    say(mine);
    return mine;
  }

  void say(const Hello& hello) {
    const auto text = write_hello(hello);
    require<ArgumentError>(text.size() <= kHelloBytes,
                           "the fingerprint of this rank takes {} bytes, expected at most {}",
                           text.size(), kHelloBytes);
    for (int32_t other = 0; other < num_ranks_; ++other) {
      if (other == me_) continue;
      auto bytes = bytes_of(text);
      auto work = progress_.send(progress_.plugin().whole_group(), Rank(other), tag(), bytes);
      told_.push_back({other, std::move(bytes), std::move(work)});
    }
  }

  /// Receives the next message of every other rank. Returns the ranks that have sent none by the
  /// deadline.
  std::vector<Rank> hear(Word word, Deadline deadline) {
    std::vector<Talk> awaited;
    for (int32_t other = 0; other < num_ranks_; ++other) {
      if (other != me_) awaited.push_back(listen(other));
    }
    // A receive that stays posted would take the first message of the next attempt to join.
    const auto stop_listening = [&] {
      // A receive that is still in the queue would be posted after its cancellation.
      progress_.advance();
      for (const auto& talk : awaited) {
        if (talk.work->is_over()) continue;
        progress_.run_here([&] { progress_.plugin().cancel(talk.work.get()); });
      }
    };
    for (bool is_last = false; !awaited.empty() && !is_last;) {
      // Messages that have arrived by the deadline count, even if this thread was delayed.
      is_last = deadline.has_passed();
      progress_.advance();
      try {
        std::vector<Talk> later;
        for (Talk& talk : awaited) {
          if (!take(talk, word)) later.push_back(talk);
        }
        awaited = std::move(later);
      } catch (...) {
        stop_listening();
        throw;
      }
      if (!awaited.empty() && !is_last) std::this_thread::sleep_for(kLook);
    }
    stop_listening();
    std::vector<Rank> silent;
    for (const auto& talk : awaited) silent.emplace_back(talk.other);
    return silent;
  }

  Talk listen(int32_t other) {
    auto bytes = at::empty({static_cast<int64_t>(kHelloBytes)}, at::kByte);
    auto work = progress_.receive(progress_.plugin().whole_group(), Rank(other), tag(), bytes);
    return {other, std::move(bytes), std::move(work)};
  }

  /// Whether the message has arrived; records it. Messages for an earlier world are skipped.
  bool take(Talk& talk, Word word) {
    while (talk.work->is_over()) {
      try {
        talk.work->wait();
      } catch (const std::runtime_error& error) {
        throw PeerError(fmt::format("cannot receive from it: {}", error.what()), Rank(talk.other));
      }
      auto hello = read_hello({static_cast<const char*>(talk.bytes.const_data_ptr()), kHelloBytes},
                              hellos_[static_cast<std::size_t>(me_)]);
      // Ranks number their worlds alike, but a rank may have failed to join an earlier one and have
      // left its messages unread.
      if (hello.world < world_) {
        talk = listen(talk.other);
        progress_.advance();
        continue;
      }
      if (word == Word::kHello) {
        hellos_[static_cast<std::size_t>(talk.other)] = std::move(hello);
      } else if (hello.word == Word::kGivesUp) {
        gone_.emplace(talk.other);
      }
      return true;
    }
    return false;
  }

  // A rank that gives up may end at once. Ranks that have come must receive its message before.
  void leave() {
    const auto limit = Deadline::after(kLinger);
    const auto is_unheard = [&](const Talk& talk) {
      // Ranks that have not come are not waited for: they may never receive anything.
      const bool has_come = !hellos_[static_cast<std::size_t>(talk.other)].fingerprint.empty();
      return has_come && !talk.work->is_over();
    };
    progress_.advance();
    while (std::any_of(told_.begin(), told_.end(), is_unheard) && !limit.has_passed()) {
      std::this_thread::sleep_for(kLook);
      progress_.advance();
    }
  }

  void add_those_who_say_more() {
    progress_.run_here([&] {
      const auto& plugin = progress_.plugin();
      for (int32_t other = 0; other < num_ranks_; ++other) {
        if (other != me_ && plugin.probe(plugin.whole_group(), other, tag()) != 0) {
          gone_.emplace(other);
        }
      }
    });
  }

  void require_all_go_on(const std::vector<Rank>& silent) {
    if (silent.empty() && gone_.empty()) return;
    // This rank has already confirmed. The second message tells ranks that have relied on that.
    say({world_, Word::kGivesUp});
    leave();
    throw TimeoutError(
        gone_.empty()
            ? fmt::format(
                  "rank {} has the fingerprints of all ranks, but {} did not confirm within {}",
                  me_, name_ranks(silent), describe_wait(join_timeout()))
            : fmt::format("rank {} joined after {} had stopped waiting", me_,
                          name_ranks({gone_.begin(), gone_.end()})));
  }

  std::string describe_difference() const {
    std::vector<Fingerprint> by_rank;
    for (const auto& hello : hellos_) by_rank.push_back(hello.fingerprint);
    return describe_mismatch(by_rank);
  }

  /// A rank that has joined and whose process has ended since, as far as known.
  std::optional<Rank> find_ended() const {
    for (int32_t other = 0; other < num_ranks_; ++other) {
      const auto& process = hellos_[static_cast<std::size_t>(other)].process;
      if (other != me_ && has_ended(process)) return Rank(other);
    }
    return std::nullopt;
  }

  std::unique_ptr<ByteTransport> connect() {
    struct Made {
      void* group = nullptr;
      std::array<char, kMpiProblemBytes> problem{};
      int32_t failed = 0;
    };
    // Shared: the call may return after this function has given up waiting.
    const auto made = std::make_shared<Made>();
    const auto& plugin = progress_.plugin();
    const auto make = [made, &plugin, ranks = num_ranks_] {
      made->failed = plugin.make_group(ranks, &made->group, made->problem.data());
    };
    if (!progress_.run(make, later(), [&] { return find_ended().has_value(); })) {
      // The progress thread is inside a call that waits for a rank. MPI_Finalize could never be
      // reached.
      progress_.set_unfinishable();
      if (const auto ended = find_ended()) {
        throw PeerError("its process ended while the ranks joined", *ended);
      }
      throw TimeoutError(
          fmt::format("rank {} waited for the other ranks to create a communicator", me_));
    }
    require<ArgumentError>(made->failed == 0, "{} cannot be used: {}", plugin.name,
                           made->problem.data());
    std::vector<ProcessName> processes;
    int32_t local_ranks = 0;
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      const auto& process = hellos_[static_cast<std::size_t>(rank)].process;
      const bool is_local =
          process.machine == hellos_[static_cast<std::size_t>(me_)].process.machine;
      if (is_local) ++local_ranks;
      processes.push_back(process);
    }
    progress_.set_local_ranks(local_ranks);
    progress_.set_peers(processes);
    // The barrier before MPI_Finalize is one of all ranks of the job. A rank outside of this world
    // may not take part in it.
    const bool is_whole = num_ranks_ == progress_.facts().num_ranks;
    if (is_whole && std::all_of(hellos_.begin(), hellos_.end(),
                                [](const Hello& hello) { return hello.ends_mpi_here; })) {
      progress_.set_meeting();
    }
    return make_mpi_byte_transport(progress_, made->group, Rank(me_),
                                   world_ * kMostSizes + static_cast<uint64_t>(num_ranks_),
                                   std::move(processes));
  }

  ByteTransport::Tag tag() const { return kHelloTag + num_ranks_; }

  const JoinOptions& options_;
  const Deadline deadline_;
  MpiProgress& progress_;
  const int32_t me_;
  const int32_t num_ranks_;
  uint64_t world_ = 0;
  std::vector<Talk> told_;
  std::vector<Hello> hellos_;
  std::set<Rank> gone_;  ///< ranks that have given up
};

}  // namespace
}  // namespace stagecraft::detail

namespace stagecraft {

std::unique_ptr<Transport> join_mpi(const JoinOptions& options) {
  return std::make_unique<detail::WireTransport>(detail::Joining(options).run(), options.transport);
}

}  // namespace stagecraft
