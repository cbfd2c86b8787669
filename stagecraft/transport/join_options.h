#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/transport/fingerprint.h"

namespace stagecraft {

/// How the transport of a process behaves after the ranks have joined.
struct ProcessTransportOptions {
  /// Compute a checksum of everything that is sent, except over NCCL, and compare it on receipt.
  bool use_checksums = false;
  /// A rank has failed if nothing was received from it for this long: it is stopped or
  /// disconnected. (A rank sends a heartbeat every 200 ms.) Zero: only deadlines detect that.
  std::chrono::nanoseconds max_silence = std::chrono::seconds(10);
  /// How long a transport waits, when it is destroyed, until the other ranks have received what it
  /// sent.
  std::chrono::nanoseconds linger = std::chrono::seconds(2);
};

/// How a process joins a world: for join_gloo, join_mpi and join_nccl. World::from_environment
/// fills it in from the launcher's variables.
struct JoinOptions {
  /// This process's rank. Ignored over MPI, which knows the rank.
  Rank rank = Rank(0);
  /// The number of ranks in the world. MPI: the first ranks of the job; without a value, all of
  /// them. gloo and NCCL: 1 without a value.
  std::optional<int32_t> num_ranks = std::nullopt;
  /// The number of this process among those of its machine. NCCL chooses the GPU by it.
  int32_t local_rank = 0;
  /// NCCL: the GPU of this rank. Without a value: the calling thread's current GPU if that is not
  /// the first one, otherwise GPU number local_rank, modulo the number of GPUs.
  std::optional<c10::Device> device = std::nullopt;

  /// Where the ranks join over gloo and NCCL: c10d's store. Rank 0 keeps it, unless a process
  /// outside the world does, such as torchrun.
  std::string host = "127.0.0.1";
  uint16_t port = 29500;
  bool store_is_elsewhere = false;
  /// The address on which rank 0's store listens.
  std::string listen = "127.0.0.1";
  /// A socket that already listens, instead of `port` and `listen`. Rank 0 takes it over.
  std::optional<int> listen_fd = std::nullopt;
  /// Where the other ranks reach this rank. Empty: the address from which it reaches `host`.
  std::string address = {};
  /// Tells apart worlds that share a store, for instance one after the other.
  std::string job = {};

  /// A secret that only the ranks of this job know; a process without it cannot join. Required over
  /// gloo and NCCL unless everything listens on the loopback address. It keeps out processes that
  /// connect by mistake. Messages are neither encrypted nor signed, so the network between the
  /// ranks must be trusted.
  std::string token = {};
  /// What the ranks must agree on, besides version, torch, wire protocol, byte order, number of
  /// ranks and checksums: schedule, stages, kinds of devices. An entry with the name of a built-in
  /// one ("version") replaces that one.
  Fingerprint fingerprint = {};
  /// How long ranks wait for each other.
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(60);
  ProcessTransportOptions transport = {};

  /// Reads torchrun's variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and
  /// STAGECRAFT_TOKEN, STAGECRAFT_LISTEN and STAGECRAFT_ADDRESS. ArgumentError names a variable
  /// that is missing or is not a number.
  static JoinOptions from_environment();
};

}  // namespace stagecraft
