#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

inline constexpr Rank kZero(0);
inline constexpr Rank kOne(1);

/// A back end to be judged: how to make a world of it and to run something on every rank.
///
/// The bodies share no memory between ranks, so that ranks may be processes; each rank judges what
/// it sees itself.
struct TransportBackend {
  using Body = std::function<void(Transport&)>;
  using OwningBody = std::function<void(std::unique_ptr<Transport>&)>;

  std::string name;
  /// Whether a send may be done before its receive is posted.
  bool buffered = true;
  /// Runs `body` on every rank of a new world, all at the same time, and rethrows what the first
  /// rank that failed threw.
  std::function<void(int32_t ranks, const Body& body)> run;
  /// The same, for bodies that destroy their end. Empty where that cannot be tried.
  std::function<void(int32_t ranks, const OwningBody& body)> run_owning;
  /// Whether a world can have `ranks` ranks. If not, `run` and `run_owning` skip the test. Empty:
  /// always.
  std::function<bool(int32_t ranks)> has_ranks;
};

inline std::ostream& operator<<(std::ostream& out, const TransportBackend& backend) {
  return out << backend.name;
}

/// What every transport promises (stagecraft/transport/transport.h). A back end joins with
///
///   SC_JOIN_TRANSPORT_SUITE(Local, local_backend());
class TransportSuite : public testing::TestWithParam<TransportBackend> {
 protected:
  void run(int32_t ranks, const TransportBackend::Body& body) { GetParam().run(ranks, body); }

  /// Sends a value and waits until it may be released. REQUIRES that the receive was posted.
  static void send(Transport& transport, Rank to, const TransferId& id, c10::IValue value);
  /// Posts and takes.
  static c10::IValue receive(Transport& transport, Rank from, const TransferId& id);

  /// For waits that are to succeed.
  static Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
  /// For waits that are to fail.
  static Deadline at_once() { return Deadline::after(std::chrono::milliseconds(30)); }

  static TransferId values(int32_t from, int32_t to, int32_t microbatch, uint64_t step = 0) {
    return {step, Direction::kForward, StageId(from), StageId(to), MicrobatchId(microbatch)};
  }
  static TransferId gradients(int32_t from, int32_t to, int32_t microbatch, uint64_t step = 0) {
    return {step, Direction::kBackward, StageId(from), StageId(to), MicrobatchId(microbatch)};
  }
};

/// Expects PeerError with the reason's rank, message and (where it crossed) cause.
void expect_aborted(const std::function<void()>& call, Rank peer, const std::string& text);

}  // namespace stagecraft

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define SC_JOIN_TRANSPORT_SUITE(prefix, ...)                                     \
  INSTANTIATE_TEST_SUITE_P(prefix, TransportSuite, testing::Values(__VA_ARGS__), \
                           [](const auto& tested) { return tested.param.name; })
