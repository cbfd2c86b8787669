#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/plan/schedule_problem.h"

namespace stagecraft::plan {

/// Kinds of actions in a search. A B is represented as the I of a stage that has no W.
enum Kind : uint8_t { kF = 0, kI = 1, kW = 2 };
constexpr int32_t kKinds = 3;

/// A schedule problem in flat tables for the search. Times include the speeds of the ranks, and
/// caps exclude fixed memory.
struct Instance {
  /// An edge of the stage graph. Transfers over a link leave in the order of their sender's list.
  struct Edge {
    int32_t from = 0;
    int32_t to = 0;
    double send[2] = {0, 0};     ///< forward, backward: time on the link
    double latency[2] = {0, 0};  ///< after the time on the link
    int32_t link[2] = {-1, -1};  ///< number of a link with a bandwidth; -1: transfers do not wait

    double delay(int direction) const { return send[direction] + latency[direction]; }
  };

  int32_t ranks = 0;
  int32_t stages = 0;
  int32_t microbatches = 0;
  bool is_span = false;
  std::vector<int32_t> rank_of;          ///< by stage
  std::vector<std::vector<int32_t>> on;  ///< by rank, ascending
  std::vector<double> time[kKinds];      ///< by stage; 0 for the W of a stage without one
  std::vector<uint8_t> is_split;         ///< by stage
  std::vector<double> mf;                ///< by stage: memory held after F
  std::vector<double> mw;                ///< by stage: memory held after I
  std::vector<double> delta[kKinds];     ///< by stage: change of held memory by an action
  std::vector<double> need[kKinds];      ///< by stage: memory that an action needs in addition
  std::vector<double> cap;               ///< by rank, without fixed memory; never infinite
  std::vector<double> size;              ///< by microbatch
  bool is_uniform = true;                ///< all sizes are 1
  double least_size = 1;
  double sum_size = 0;
  std::vector<Edge> edges;
  std::vector<int32_t> in_edges;  ///< numbers of edges, grouped by `to`
  std::vector<int32_t> first_in;
  std::vector<int32_t> out_edges;  ///< grouped by `from`
  std::vector<int32_t> first_out;
  int32_t links = 0;      ///< number of links with a bandwidth
  bool has_chain = true;  ///< every stage reads the output of the one before it

  explicit Instance(const ScheduleProblem& problem);

  std::span<const int32_t> in(int32_t stage) const {
    return std::span(in_edges).subspan(first_in[stage], first_in[stage + 1] - first_in[stage]);
  }
  std::span<const int32_t> out(int32_t stage) const {
    return std::span(out_edges).subspan(first_out[stage], first_out[stage + 1] - first_out[stage]);
  }
  std::size_t id(int32_t kind, int32_t stage, int32_t m) const {
    return (static_cast<std::size_t>(kind) * stages + stage) * microbatches + m;
  }
  std::size_t num_ids() const { return static_cast<std::size_t>(kKinds) * stages * microbatches; }
  double cost(int32_t kind, int32_t stage, int32_t m) const { return time[kind][stage] * size[m]; }
  /// The number of actions of a rank, and of all ranks.
  int64_t actions_of(int32_t rank) const;
  int64_t num_actions() const;
  /// The total compute time of a rank.
  double work(int32_t rank) const;
  double most_work() const;
};

/// The cap plus a tolerance for rounding, because memory is a sum of doubles.
double with_slack(double cap);

}  // namespace stagecraft::plan
