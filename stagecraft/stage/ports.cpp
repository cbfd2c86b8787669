#include "stagecraft/stage/ports.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

std::string text(const InputPort& to) {
  return to.name.empty() ? fmt::format("argument {} of stage {}", to.position, to.stage.value())
                         : fmt::format("argument \"{}\" of stage {}", to.name, to.stage.value());
}

bool is_same_input(const InputPort& a, const InputPort& b) {
  // A name is not compared with a position: the names of a stage's parameters are not known here.
  return a.stage == b.stage && a.name == b.name && (!a.name.empty() || a.position == b.position);
}

}  // namespace

Ports::Ports(int32_t stages) : stages_(stages) {
  require<ArgumentError>(stages >= 1, "ports: expected at least one stage, got {}", stages);
}

Ports Ports::without_chain(int32_t stages) {
  Ports ports(stages);
  ports.chain_ = false;
  return ports;
}

void Ports::check_input(const InputPort& to, std::string_view what) const {
  require<ArgumentError>(to.stage.value() >= 0 && to.stage.value() < stages_,
                         "{}: there is no stage {}; there are {}", what, to.stage.value(), stages_);
  require<ArgumentError>(to.position >= 0, "{}: expected a position from 0, got {}", what,
                         to.position);
  const bool taken =
      std::any_of(connections_.begin(), connections_.end(),
                  [&](const Connection& other) { return is_same_input(other.to, to); }) ||
      std::any_of(feeds_.begin(), feeds_.end(),
                  [&](const Feed& other) { return is_same_input(other.to, to); });
  require<ArgumentError>(!taken, "{}: {} has a source already", what, text(to));
}

Ports& Ports::connect(OutputPort from, InputPort to) {
  check_input(to, "connect");
  require<ArgumentError>(from.stage.value() >= 0 && from.output >= 0,
                         "connect: expected a stage and an output from 0, got stage {}, output {}",
                         from.stage.value(), from.output);
  // Stages form a graph without cycles in the order of their numbers, so every schedule that
  // respects the chain can run.
  require<ArgumentError>(from.stage < to.stage,
                         "connect: values go from an earlier stage to a later one, got stage {} to "
                         "stage {}",
                         from.stage.value(), to.stage.value());
  connections_.push_back({from, std::move(to)});
  return *this;
}

Ports& Ports::feed(int32_t argument, InputPort to) {
  check_input(to, "feed");
  require<ArgumentError>(argument >= 0, "feed: expected an argument from 0, got {}", argument);
  feeds_.push_back({argument, {}, std::move(to)});
  return *this;
}

Ports& Ports::feed(std::string name, InputPort to) {
  check_input(to, "feed");
  require<ArgumentError>(!name.empty(), "feed: expected the name of an argument, got \"\"");
  feeds_.push_back({std::nullopt, std::move(name), std::move(to)});
  return *this;
}

bool Ports::is_edge(StageId from, StageId to) const {
  if (chain_ && from + 1 == to) return true;
  return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& connection) {
    return connection.from.stage == from && connection.to.stage == to;
  });
}

bool Ports::is_connected(OutputPort output) const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [&](const Connection& connection) { return connection.from == output; });
}

}  // namespace stagecraft
