#include "stagecraft/transport/gloo/join.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/detached.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/transport/core/world_state.h"
#include "stagecraft/transport/gloo/addresses.h"
#include "stagecraft/transport/gloo/c10d_byte_transport.h"
#include "stagecraft/transport/gloo/gloo_group.h"
#include "stagecraft/transport/gloo/join_gloo.h"
#include "stagecraft/transport/gloo/sigpipe.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/handshake.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::detail {
namespace {

using std::chrono::milliseconds;

// 128 random bits: no two worlds have the same salt, so signatures of an earlier world are of no
// use.
constexpr std::size_t kSaltBytes = 16;
// The size of an HMAC with SHA-256.
constexpr std::size_t kSignBytes = 32;
// How long rank 0 keeps the store after a failure, so that other ranks can still read the
// fingerprints.
constexpr auto kFarewell = std::chrono::seconds(2);
// How long a thread may take to report its own timeout.
constexpr auto kPatience = std::chrono::seconds(1);
// A look is a round trip to the store. The pauses double: ranks that start together join within
// milliseconds, and 63 ranks that wait long ask 63 * 50 = 3150 times a second.
constexpr auto kFirstLook = std::chrono::microseconds(500);
constexpr auto kLastLook = std::chrono::microseconds(20000);

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string make_salt() {
  std::random_device random;
  std::string salt;
  while (salt.size() < kSaltBytes) salt += static_cast<char>(random());
  return salt;
}

// A store may outlive a world, so this process numbers its worlds at each store. A world does not
// read what an earlier one has left.
int next_world(const std::string& where) {
  static std::mutex mutex;
  static std::map<std::string, int> worlds;
  const std::lock_guard lock(mutex);
  return worlds[where]++;
}

// Without a token neither the store nor this rank may listen on an address that other machines can
// reach.
void require_local(const JoinOptions& options, bool keeps_store) {
  const auto refuse = [](const std::string& what) {
    throw ArgumentError(
        what + ": other machines can connect there, so a token is required (STAGECRAFT_TOKEN)");
  };
  if (!is_loopback(options.host)) refuse("the ranks join at " + options.host);
  if (keeps_store && options.listen_fd && !is_on_loopback(*options.listen_fd)) {
    refuse("the ranks join at the given socket");
  }
  if (keeps_store && !options.listen_fd && !is_loopback(options.listen)) {
    refuse(fmt::format("the store listens on {} (STAGECRAFT_LISTEN)", options.listen));
  }
  if (!options.address.empty() && !is_loopback(options.address)) {
    refuse(fmt::format("this rank listens on {} (STAGECRAFT_ADDRESS)", options.address));
  }
}

// Creates c10d's store on a detached thread: its constructor waits for ever for a listener that
// sends nothing. Null at the deadline, or if there is no store.
c10::intrusive_ptr<c10d::Store> make_store(const std::string& host, Socket listener,
                                           c10d::TCPStoreOptions options, Deadline deadline) {
  if (listener.get() >= 0) options.masterListenFd = listener.get();
  auto make = [host, options, owned = std::move(listener)]() mutable {
    c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(host, options);
    owned.release();  // the store owns the socket now
    return store;
  };
  try {
    return run_detached("sc store", std::move(make), deadline).value_or(nullptr);
  } catch (const std::exception& error) {
    log(LogLevel::kInfo, fmt::format("store: {}", error.what()));
    return nullptr;
  }
}

void check_ranks(const JoinOptions& options) {
  const int32_t num_ranks = options.num_ranks.value_or(1);
  require<ArgumentError>(num_ranks >= 1, "a world needs at least one rank, got {}", num_ranks);
  require<ArgumentError>(options.rank.value() >= 0 && options.rank.value() < num_ranks,
                         "there is no rank {} among {} ranks", options.rank.value(), num_ranks);
}

void check(const JoinOptions& options) {
  check_ranks(options);
  const bool keeps_store = options.rank.value() == 0 && !options.store_is_elsewhere;
  const bool is_local = is_loopback(options.host);
  if (options.token.empty()) require_local(options, keeps_store);
  if (keeps_store && !options.listen_fd && !is_local && is_loopback(options.listen)) {
    throw ArgumentError(
        fmt::format("the ranks join at {}, but the store listens on {} only: set the address to "
                    "listen on (STAGECRAFT_LISTEN)",
                    options.host, options.listen));
  }
}

// Joins one rank to the world.
class Joining {
 public:
  explicit Joining(const JoinOptions& options)
      : options_(options), deadline_(Deadline::after(options.join_timeout)) {
    check(options);
    open_store();
  }
  Joining(const c10::intrusive_ptr<c10d::Store>& store, const JoinOptions& options)
      : options_(options), deadline_(Deadline::after(options.join_timeout)), is_given_(true) {
    check_ranks(options);
    store_ = c10::make_intrusive<c10d::PrefixStore>("stagecraft/" + options.job, store);
  }

  std::unique_ptr<ByteTransport> run() {
    try {
      admit();
      compare();
      auto byte_transport = connect();
      leave_store(deadline_);
      return byte_transport;
    } catch (const Error&) {
      leave_store(Deadline::after(kFarewell));
      throw;
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, fmt::format("joining: {}", error.what()));
      throw PeerError(
          fmt::format("rank 0: the store at {} ended while rank {} joined", where(), me()),
          Rank(0));
    }
  }

 private:
  int32_t me() const { return options_.rank.value(); }
  int32_t num_ranks() const { return options_.num_ranks.value_or(1); }
  bool keeps_store() const { return me() == 0 && !options_.store_is_elsewhere && !is_given_; }
  std::string where() const {
    return is_given_ ? "the given address" : fmt::format("{}:{}", options_.host, port_);
  }
  // The address at which peers reach this rank. Empty: the one that c10d's own groups use.
  std::string own_address() const {
    if (!options_.address.empty() || is_given_) return options_.address;
    return address_towards(options_.host);
  }
  milliseconds time_left() const {
    const auto left = std::chrono::ceil<milliseconds>(deadline_.at() - Deadline::Clock::now());
    return std::max(left, milliseconds(1));
  }

  void open_store() {
    port_ = options_.port;
    c10d::TCPStoreOptions store;
    Socket listener;
    if (keeps_store()) {
      listener = options_.listen_fd ? Socket(*options_.listen_fd)
                                    : listen_on(options_.listen, options_.port);
      port_ = port_of(listener);
      store.isServer = true;
    }
    store.port = port_;
    // c10d's own wait for all ranks cannot say which ranks are missing. `compare` can.
    store.waitWorkers = false;
    store.timeout = time_left();
    // A store that rank 0 keeps is new for every world.
    const int number = options_.store_is_elsewhere ? next_world(where() + "/" + options_.job) : 0;
    // Before c10d's store is asked: ranks may start earlier than rank 0, and this wait has a
    // deadline.
    if (!keeps_store() && !wait_for_listener(options_.host, port_, deadline_)) throw_no_store();
    base_ = make_store(options_.host, std::move(listener), store, deadline_);
    if (!base_) throw_no_store();
    store_ = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("stagecraft/{}/{}", options_.job, number), base_);
  }

  [[noreturn]] void throw_no_store() const {
    throw TimeoutError(fmt::format("rank {} waited {} for the store at {}", me(),
                                   describe_wait(options_.join_timeout), where()));
  }

  // The value of a key, as soon as it exists and `accept` returns true for it; nothing at the
  // deadline. The store is polled, because its own wait would print an error.
  template <typename Accept>
  std::optional<std::string> wait_for(const std::string& key, const Accept& accept) {
    for (auto pause = kFirstLook;; pause = std::min(2 * pause, kLastLook)) {
      // `get` waits for a key that does not exist, until the store's own timeout.
      if (store_->check({key})) {
        auto value = text_of(store_->get(key));
        if (accept(value)) return value;
      }
      if (deadline_.has_passed()) return std::nullopt;
      std::this_thread::sleep_for(pause);
    }
  }

  [[noreturn]] void throw_missing(const std::vector<Rank>& missing, const std::string& where_from) {
    std::string text =
        fmt::format("rank {} waited {} for {} {}", me(), describe_wait(options_.join_timeout),
                    name_ranks(missing), where_from);
    for (const Rank rank : missing) {
      if (store_->check({"refused/" + to_string(rank)})) {
        text +=
            fmt::format("; a process without the job's token asked to be rank {}", rank.value());
      }
    }
    throw TimeoutError(text);
  }

  void admit() {
    if (me() == 0) {
      // The signed salt proves that rank 0 has the token. A rank with a different token notices
      // that here and sends nothing that is signed with its own.
      salt_ = make_salt();
      store_->set("salt", bytes_of(salt_ + sign(options_.token, salt_)));
    } else {
      const auto signed_salt = wait_for(
          "salt", [](const std::string& s) { return s.size() == kSaltBytes + kSignBytes; });
      if (!signed_salt) throw_missing({Rank(0)}, "to open the world at " + where());
      salt_ = signed_salt->substr(0, kSaltBytes);
      if (signed_salt->substr(kSaltBytes) != sign(options_.token, salt_)) {
        store_->set("refused/" + std::to_string(me()), bytes_of("1"));
        throw ArgumentError(
            fmt::format("the job at {1} refused rank {0}: its token differs (STAGECRAFT_TOKEN)",
                        me(), where()));
      }
    }
  }

  std::string sign_fingerprint(int32_t rank, const std::string& fingerprint) const {
    // With salt and rank: a fingerprint that was read from the store cannot be used in a different
    // world, or as a different rank.
    return sign(options_.token, fmt::format("{}/{}/{}", salt_, rank, fingerprint));
  }

  void compare() {
    // The random salt distinguishes this process from a second one with the same fingerprint.
    const Fingerprint fingerprint = fingerprint_of_rank(options_, num_ranks());
    ByteWriter mine;
    mine.put(kHandshakeMagic);
    write_fingerprint(mine, fingerprint);
    const auto value = bytes_of(sign_fingerprint(me(), mine.bytes()) + make_salt() + mine.bytes());
    const auto key = [](int32_t rank) { return "fingerprint/" + std::to_string(rank); };
    const auto is_signed = [&](int32_t rank, const std::string& text) {
      return text.size() >= kSignBytes + kSaltBytes &&
             text.substr(0, kSignBytes) ==
                 sign_fingerprint(rank, text.substr(kSignBytes + kSaltBytes));
    };
    // compareSet is atomic: of two processes that claim one rank, exactly one finds its own value.
    const auto there = store_->compareSet(key(me()), {}, value);
    if (there != value) {
      if (is_signed(me(), text_of(there))) {
        throw ArgumentError(fmt::format(
            "rank {} of the job at {} has already joined from a different process", me(), where()));
      }
      // The entry is not signed, so no rank of this job has written it.
      store_->set(key(me()), value);
    }
    is_admitted_ = true;
    std::vector<Fingerprint> by_rank;
    std::vector<Rank> missing;
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      const auto text =
          wait_for(key(rank), [&](const std::string& t) { return is_signed(rank, t); });
      if (!text) {
        missing.push_back(Rank(rank));
        continue;
      }
      ByteReader in(std::string_view(*text).substr(kSignBytes + kSaltBytes));
      auto foreign = read_magic(in, fingerprint);
      by_rank.push_back(foreign ? std::move(*foreign) : read_fingerprint(in));
      // A rank that expects more ranks than the others may wait for ranks that do not exist. If a
      // rank is missing, positions in the list are no longer ranks, and the missing rank is named.
      if (missing.empty() && rank + 1 == known_ranks(by_rank)) require_same_fingerprints(by_rank);
    }
    if (!missing.empty()) throw_missing(missing, "at " + where());
    require_same_fingerprints(by_rank);
  }

  // The smallest number of ranks that a rank has named. A rank may have put other text in place of
  // the number (JoinOptions::fingerprint); the comparison of all ranks reports that.
  static int32_t known_ranks(const std::vector<Fingerprint>& by_rank) {
    int32_t smallest = std::numeric_limits<int32_t>::max();
    for (const auto& fingerprint : by_rank) {
      for (const auto& [name, value] : fingerprint) {
        if (name != "number of ranks") continue;
        int32_t ranks = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ranks);
        if (error == std::errc() && end == value.data() + value.size()) {
          smallest = std::min(smallest, ranks);
        }
      }
    }
    return smallest;
  }

  std::unique_ptr<ByteTransport> connect() {
    const auto address = own_address();
    // The two marks are for the error message: gloo does not say which rank it could not connect
    // to.
    store_->set("connecting/" + std::to_string(me()), bytes_of("1"));
    auto group_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store_);
    try {
      auto byte_transport = make_c10d_byte_transport(
          make_gloo_group(group_store, options_.rank, num_ranks(), address, time_left()));
      store_->set("connected/" + std::to_string(me()), bytes_of("1"));
      return byte_transport;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, fmt::format("connecting: {}", error.what()));
      std::vector<Rank> missing;
      for (int32_t rank = 0; rank < num_ranks(); ++rank) {
        if (!store_->check({"connecting/" + std::to_string(rank)})) missing.push_back(Rank(rank));
      }
      if (missing.empty()) {
        for (int32_t rank = 0; rank < num_ranks(); ++rank) {
          if (rank != me() && !store_->check({"connected/" + std::to_string(rank)})) {
            missing.push_back(Rank(rank));
          }
        }
      }
      if (missing.empty()) missing.push_back(options_.rank);
      throw_missing(missing, "to connect");
    }
  }

  // The rank that keeps the store waits until no rank reads it any more.
  void leave_store(Deadline deadline) {
    try {
      const auto key = [](int32_t rank) { return "done/" + std::to_string(rank); };
      // A process that was refused must not speak for the rank that it claimed.
      if (is_admitted_) store_->set(key(me()), bytes_of("1"));
      std::vector<std::string> all;
      for (int32_t rank = 0; rank < num_ranks(); ++rank) all.push_back(key(rank));
      while (keeps_store() && !store_->check(all) && !deadline.has_passed()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    } catch (const std::exception& error) {
      log(LogLevel::kInfo, fmt::format("leaving the store: {}", error.what()));
    }
    store_.reset();
    base_.reset();
  }

  const JoinOptions& options_;
  const Deadline deadline_;
  uint16_t port_ = 0;
  c10::intrusive_ptr<c10d::Store> base_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string salt_;
  const bool is_given_ = false;  ///< the program's own store
  bool is_admitted_ = false;     ///< this process has claimed its rank
};

}  // namespace

namespace {

// Joins on a detached thread: a call of the store waits for ever if the process that keeps the
// store stops during the call.
template <typename Join>
std::unique_ptr<ByteTransport> join_detached(const JoinOptions& options, const std::string& where,
                                             Join join) {
  // Longer than the join itself, whose own TimeoutError names the missing ranks.
  const auto latest = Deadline::Clock::time_point::max() - kFarewell - kPatience;
  const auto end =
      std::min(Deadline::after(options.join_timeout).at(), latest) + kFarewell + kPatience;
  auto joined = run_detached("sc join", std::move(join), Deadline(end));
  if (!joined) {
    throw TimeoutError(fmt::format("rank {} waited {} for the store at {} to answer",
                                   options.rank.value(), describe_wait(options.join_timeout),
                                   where));
  }
  return std::move(*joined);
}

}  // namespace

std::unique_ptr<ByteTransport> connect_gloo(const JoinOptions& options) {
  return join_detached(options, fmt::format("{}:{}", options.host, options.port), [options] {
    // The connection to the store may close at any time. Threads that start here inherit the
    // blocked signal.
    const SigpipeGuard guard;
    return Joining(options).run();
  });
}

std::unique_ptr<ByteTransport> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const JoinOptions& options) {
  return join_detached(options, "the given address", [store, options] {
    const SigpipeGuard guard;
    return Joining(store, options).run();
  });
}

}  // namespace stagecraft::detail

namespace stagecraft {

std::unique_ptr<Transport> join_gloo(const JoinOptions& options) {
  return std::make_unique<detail::WireTransport>(detail::connect_gloo(options), options.transport);
}

std::unique_ptr<Transport> join_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                     const JoinOptions& options) {
  return std::make_unique<detail::WireTransport>(detail::connect_gloo(store, options),
                                                 options.transport);
}

std::unique_ptr<Transport> join_gloo(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                     const ProcessTransportOptions& options) {
  return std::make_unique<detail::WireTransport>(detail::make_c10d_byte_transport(group), options);
}

}  // namespace stagecraft
