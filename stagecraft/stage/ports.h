#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// One of the values that a stage returns: the n-th element of its tuple or list, or the value
/// itself, n = 0.
struct OutputPort {
  StageId stage;
  int32_t output = 0;

  friend bool operator==(const OutputPort&, const OutputPort&) = default;
};

/// One of the arguments of a stage's forward: by position, or by name if there is one.
struct InputPort {
  StageId stage;
  int32_t position = 0;
  std::string name = {};

  friend bool operator==(const InputPort&, const InputPort&) = default;
};

/// Where the inputs of the stages come from.
///
/// By default stages are a chain: all outputs of a stage are, in order, the arguments of the next,
/// and the model's arguments, positional and by name, are those of stage 0. An output or argument
/// that is connected explicitly is not part of the chain. The chain carries the other outputs to
/// the other arguments, in order:
///
///   Ports ports(4);
///   ports.connect({StageId(0), 1}, {StageId(3), 1});   // output 1 of stage 0 skips to stage 3
///   ports.feed("mask", {StageId(2), 0, "mask"});        // a model input that stage 2 takes
///
/// An output may be connected to several inputs. Values go from earlier stages to later ones.
class Ports {
 public:
  /// A chain. ArgumentError unless stages >= 1.
  explicit Ports(int32_t stages);
  /// Only explicit connections.
  static Ports without_chain(int32_t stages);

  /// ArgumentError for a stage that does not exist, a connection that does not lead from an earlier
  /// stage to a later one, an input that is already connected or fed, or a negative index.
  Ports& connect(OutputPort from, InputPort to);
  /// Feeds an argument of the model, by position or by name. An argument may be fed to several
  /// stages.
  Ports& feed(int32_t argument, InputPort to);
  Ports& feed(std::string name, InputPort to);

  /// An output of a stage and an input that reads it.
  struct Connection {
    OutputPort from;
    InputPort to;
  };
  /// An input of the model and a stage that takes it.
  struct Feed {
    std::optional<int32_t> argument;  ///< by position; otherwise by name
    std::string name;
    InputPort to;
  };

  int32_t num_stages() const { return stages_; }
  bool has_chain() const { return chain_; }
  std::span<const Connection> connections() const { return connections_; }
  std::span<const Feed> feeds() const { return feeds_; }

  /// Whether values go from one stage to the other.
  bool is_edge(StageId from, StageId to) const;
  /// Whether an output is connected explicitly, and therefore not part of the chain.
  bool is_connected(OutputPort output) const;

 private:
  void check_input(const InputPort& to, std::string_view what) const;

  int32_t stages_;
  bool chain_ = true;
  std::vector<Connection> connections_;
  std::vector<Feed> feeds_;
};

}  // namespace stagecraft
