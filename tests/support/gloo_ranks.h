#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "stagecraft/transport/gloo/join_gloo.h"
#include "tests/support/processes.h"

namespace stagecraft {

/// A port of this machine on which no process listens at the moment.
uint16_t free_port();

/// Makes the options of each rank of a new world on this machine; the port is free.
class GlooRanks {
 public:
  explicit GlooRanks(int32_t ranks);
  ~GlooRanks();
  GlooRanks(const GlooRanks&) = delete;
  GlooRanks& operator=(const GlooRanks&) = delete;

  /// In the process of rank i.
  JoinOptions options(int32_t i) const;

 private:
  int32_t ranks_;
  int listener_;
  uint16_t port_;
};

/// Runs `body` on every rank of a new world of processes. A rank that throws aborts the world.
std::vector<ProcessEnd> run_gloo_ranks(int32_t ranks, const ProcessTransportOptions& options,
                                       const std::function<void(Transport&)>& body);

}  // namespace stagecraft
