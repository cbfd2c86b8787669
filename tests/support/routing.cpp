#include "tests/support/routing.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace stagecraft {

namespace {

struct Placed {
  c10::IValue value;
  ArgumentSource source;
  std::size_t number =
      0;  // among all arguments of the stage, in the order of RoutedArguments::order
};

bool is_fed(const Ports& ports, std::size_t argument) {
  return std::any_of(ports.feeds().begin(), ports.feeds().end(), [&](const Ports::Feed& feed) {
    return feed.argument == static_cast<int32_t>(argument);
  });
}

bool is_fed(const Ports& ports, const std::string& name) {
  return std::any_of(ports.feeds().begin(), ports.feeds().end(),
                     [&](const Ports::Feed& feed) { return !feed.argument && feed.name == name; });
}

}  // namespace

RoutedArguments route(const Ports& ports, StageId to,
                      const std::vector<std::vector<c10::IValue>>& outputs,
                      const Arguments& model) {
  std::map<int32_t, Placed> positional;
  std::vector<std::pair<std::string, Placed>> named;
  std::size_t count = 0;
  auto place = [&](const InputPort& port, const c10::IValue& value, ArgumentSource source) {
    const Placed placed{value, source, count++};
    if (port.name.empty()) {
      positional[port.position] = placed;
    } else {
      named.emplace_back(port.name, placed);
    }
  };
  auto append = [&](const c10::IValue& value, ArgumentSource source) {
    int32_t free = 0;
    while (positional.contains(free)) ++free;
    positional[free] = {value, source, count++};
  };

  for (const Ports::Connection& connection : ports.connections()) {
    if (connection.to.stage != to) continue;
    const auto stage = static_cast<std::size_t>(connection.from.stage.value());
    const auto output = static_cast<std::size_t>(connection.from.output);
    place(connection.to, outputs.at(stage).at(output), {connection.from.stage.value(), output});
  }
  for (const Ports::Feed& feed : ports.feeds()) {
    if (feed.to.stage != to) continue;
    place(feed.to,
          feed.argument ? model.args.at(static_cast<std::size_t>(*feed.argument))
                        : model.kwargs.get(feed.name),
          {});
  }
  if (ports.has_chain() && to.value() > 0) {
    const StageId from = to - 1;
    const std::vector<c10::IValue>& values = outputs.at(static_cast<std::size_t>(from.value()));
    for (std::size_t n = 0; n < values.size(); ++n) {
      if (ports.is_connected({from, static_cast<int32_t>(n)})) continue;
      append(values[n], {from.value(), n});
    }
  }
  if (ports.has_chain() && to.value() == 0) {
    for (std::size_t n = 0; n < model.args.size(); ++n) {
      if (!is_fed(ports, n)) append(model.args[n], {});
    }
    for (const auto& [name, value] : model.kwargs) {
      if (!is_fed(ports, name)) named.emplace_back(name, Placed{value, {}, count++});
    }
  }

  RoutedArguments result;
  result.order.resize(count);
  auto add = [&](const Placed& placed) {
    result.order[placed.number] = result.sources.size();
    result.sources.push_back(placed.source);
  };
  for (const auto& [position, placed] : positional) {
    if (position != static_cast<int32_t>(result.arguments.args.size())) {
      throw std::logic_error("a test model leaves argument " +
                             std::to_string(result.arguments.args.size()) + " of a stage open");
    }
    result.arguments.args.push_back(placed.value);
    add(placed);
  }
  for (const auto& [name, placed] : named) {
    result.arguments.kwargs.set(name, placed.value);
    add(placed);
  }
  return result;
}

}  // namespace stagecraft
