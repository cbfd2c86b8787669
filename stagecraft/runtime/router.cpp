#include "stagecraft/runtime/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/runtime/values.h"
#include "stagecraft/stage/backward.h"
#include "stagecraft/stage/grad_value.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// After its values, every forward message has the weight of the microbatch and the number of
// microbatches. A rank without arguments and targets takes the weight from there, and compares the
// number with its own.
double take_tail(std::vector<c10::IValue>& values, const WireEdge& edge, std::size_t microbatches) {
  const std::size_t named = edge.connections.size();
  const std::size_t got = values.size();
  require<MetadataError>(
      (edge.has_chain ? got >= named + 2 : got == named + 2) && values[got - 1].isInt() &&
          values[got - 2].isDouble(),
      "stage {} sent {} values to stage {}, expected {}{}, a weight and the number "
      "of microbatches: the ranks do not agree on the ports",
      edge.from.value(), got, edge.to.value(), edge.has_chain ? "at least " : "", named);
  const int64_t theirs = values[got - 1].toInt();
  require<MetadataError>(
      theirs == static_cast<int64_t>(microbatches),
      "rank {} runs a step of {} microbatches, but this rank runs one of {}: a rank without "
      "arguments and targets takes the number from StepOptions::microbatches",
      edge.peer.value(), theirs, microbatches);
  const double weight = values[got - 2].toDouble();
  values.resize(got - 2);
  return weight;
}

}  // namespace

Router::Router(Transport& transport, const Wiring& wiring, Recorder& recorder,
               ProgressMark& progress, const PipelineOptions& options)
    : rank_(transport.rank()),
      wiring_(wiring),
      options_(options),
      transfers_(transport, recorder, progress, options) {}

void Router::start(uint64_t step, std::size_t microbatches, bool is_training,
                   const Microbatches& batch, MemoryMeter* meter) {
  step_ = step;
  microbatches_ = microbatches;
  is_training_ = is_training;
  batch_ = &batch;
  transfers_.start(meter);
  if (batch.weights.empty()) {
    weights_ = IndexedVector<MicrobatchId, double>(static_cast<int32_t>(microbatches), kUnknown);
  } else {
    weights_ = IndexedVector<MicrobatchId, double>(batch.weights);
  }
  const std::span<const StageWires> stages = wiring_.stages();
  cells_.resize(stages.size() * microbatches);
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    const StageWires& wires = stages[i / microbatches];
    // With a different number of microbatches, cells belong to different stages than before.
    Cell& cell = cells_[i];
    cell.num_outputs = 0;
    cell.chain_outputs.clear();
    cell.origins.clear();
    cell.model_inputs.clear();
    cell.shared.clear();
    for (Arrival& arrival : cell.inputs) arrival = {};
    for (Arrival& arrival : cell.grads) arrival = {};
    cell.inputs.resize(wires.in.size());
    cell.outgoing_grads.resize(wires.in.size());
    cell.grads.resize(wires.out.size());
    cell.outgoing.resize(wires.out.size());
  }
}

// The identity of the transfer of values along an edge, or of their gradients.
TransferId Router::id_of(const WireEdge& edge, MicrobatchId m, bool is_forward) const {
  if (is_forward) return {step_, Direction::kForward, edge.from, edge.to, m};
  return {step_, Direction::kBackward, edge.to, edge.from, m};
}

double Router::weight(MicrobatchId m) const {
  const double known = weights_[m];
  if (!std::isnan(known)) return known;
  return 1.0 / (static_cast<double>(microbatches_) * options_.replicas);
}

void Router::clear() {
  cells_.clear();
  transfers_.clear();
  model_grads_.clear();
}

void Router::finish() {
  transfers_.finish();
  // All microbatches at once, because their histories may be one graph.
  backward_into(std::exchange(model_grads_, {}));
}

const c10::IValue& Router::model_input(const Ports::Feed& feed, MicrobatchId m) const {
  const auto i = m.position();
  if (i < batch_->inputs.size()) {
    const Arguments& given = batch_->inputs[i];
    if (feed.argument) {
      const auto n = static_cast<std::size_t>(*feed.argument);
      if (n < given.args.size()) return given.args[n];
    } else if (const c10::IValue* found = given.kwargs.find(feed.name)) {
      return *found;
    }
  }
  const std::string what =
      feed.argument ? fmt::format("argument {}", *feed.argument) : fmt::format("\"{}\"", feed.name);
  throw ArgumentError(fmt::format("stage {} takes the model's {}, which was not given to rank {}",
                                  feed.to.stage.value(), what, rank_.value()));
}

void Router::take_values(Cell& cell, const WireEdge& edge, std::size_t e, MicrobatchId m) {
  if (edge.is_local) return;
  Arrival& arrival = cell.inputs[e];
  if (std::exchange(arrival.is_early, false)) return;
  arrival.values = transfers_.receive(arrival.receive, edge.peer, id_of(edge, m, true));
  arrival.receive.reset();
  const double sent = take_tail(arrival.values, edge, microbatches_);
  double& weight = weights_[m];
  if (std::isnan(weight)) weight = sent;
}

Arguments Router::take_inputs(Action forward) {
  Cell& c = cell(forward);
  const StageWires& w = wires(forward);
  const MicrobatchId m = forward.microbatch();
  ArgumentBuilder builder;
  for (std::size_t e = 0; e < w.in.size(); ++e) {
    take_values(c, w.in[e], e, m);
    for (std::size_t i = 0; i < w.in[e].connections.size(); ++i) {
      builder.place(w.in[e].connections[i].to, c.inputs[e].values[i],
                    {static_cast<int32_t>(e), static_cast<int32_t>(i)});
    }
  }
  for (const Ports::Feed& feed : w.feeds) builder.place(feed.to, model_input(feed, m), {});
  for (std::size_t e = 0; e < w.in.size(); ++e) {
    if (!w.in[e].has_chain) continue;
    const std::vector<c10::IValue>& values = c.inputs[e].values;
    for (std::size_t i = w.in[e].connections.size(); i < values.size(); ++i) {
      builder.append(values[i], {static_cast<int32_t>(e), static_cast<int32_t>(i)});
    }
  }
  if (w.takes_model_arguments && !batch_->inputs.empty()) add_model_arguments(m, builder);
  for (Arrival& arrival : c.inputs) arrival.values.clear();

  Arguments result = builder.finish(forward.stage(), c.origins);
  if (is_training_) keep_model_inputs(c, result);
  return result;
}

// The model's arguments that Ports::feed does not give to a stage.
void Router::add_model_arguments(MicrobatchId m, ArgumentBuilder& builder) const {
  const Arguments& given = batch_->inputs[m.position()];
  for (std::size_t i = 0; i < given.args.size(); ++i) {
    if (!wiring_.is_fed(i)) builder.append(given.args[i], {});
  }
  for (const auto& [name, value] : given.kwargs) {
    if (!wiring_.is_fed(name)) builder.set(name, value, {});
  }
}

// Backward continues into the history of inputs that require grad.
void Router::keep_model_inputs(Cell& cell, const Arguments& arguments) {
  std::size_t i = 0;
  auto keep = [&](const c10::IValue& value) {
    if (cell.origins[i].edge < 0 && requires_grad(value)) cell.model_inputs.emplace_back(i, value);
    ++i;
  };
  for (const c10::IValue& value : arguments.args) keep(value);
  for (const auto& [name, value] : arguments.kwargs) keep(value);
}

std::vector<c10::IValue> Router::select(const WireEdge& edge, const Cell& cell,
                                        std::span<const c10::IValue> outputs) const {
  std::vector<c10::IValue> values;
  for (const Ports::Connection& connection : edge.connections) {
    const auto n = static_cast<std::size_t>(connection.from.output);
    require<ArgumentError>(n < outputs.size(),
                           "output {} of stage {} is connected to stage {}, but the stage returned "
                           "{} outputs",
                           n, edge.from.value(), edge.to.value(), outputs.size());
    values.push_back(outputs[n]);
  }
  if (edge.has_chain) {
    for (const int32_t n : cell.chain_outputs) {
      values.push_back(outputs[static_cast<std::size_t>(n)]);
    }
  }
  return values;
}

void Router::put_outputs(Action forward, const c10::IValue& output) {
  Cell& c = cell(forward);
  const StageWires& w = wires(forward);
  const std::vector<c10::IValue> outputs = outputs_of(output);
  c.num_outputs = outputs.size();
  c.chain_outputs.clear();
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    if (!wiring_.is_connected(forward.stage(), n)) {
      c.chain_outputs.push_back(static_cast<int32_t>(n));
    }
  }
  for (std::size_t e = 0; e < w.out.size(); ++e) {
    const WireEdge& edge = w.out[e];
    std::vector<c10::IValue> values = select(edge, c, outputs);
    if (edge.is_local) {
      Arrival& arrival = cell(edge.peer_stage, forward.microbatch())
                             .inputs[static_cast<std::size_t>(edge.peer_edge)];
      arrival.values = std::move(values);
    } else {
      for (c10::IValue& value : values) value = without_history(value, is_training_);
      c.outgoing[e] = std::move(values);
    }
  }
  if (is_training_ && w.out.size() > 1) watch_shared_outputs(w, c, outputs);
}

void Router::receive_grads(Arrival& arrival, const WireEdge& edge, MicrobatchId m) {
  arrival.values = transfers_.receive(arrival.receive, edge.peer, id_of(edge, m, false));
  arrival.receive.reset();
}

std::vector<std::vector<c10::IValue>*> Router::receive_early(Action compute) {
  std::vector<std::vector<c10::IValue>*> values;
  Cell& c = cell(compute);
  const StageWires& w = wires(compute);
  const bool is_forward = compute.type() == ActionType::kForward;
  if (compute.type() == ActionType::kBackwardWeight) return values;
  const auto& edges = is_forward ? w.in : w.out;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    if (edges[e].is_local) continue;
    Arrival& arrival = is_forward ? c.inputs[e] : c.grads[e];
    if (!arrival.is_early && arrival.receive != nullptr) {
      if (is_forward) {
        take_values(c, edges[e], e, compute.microbatch());
      } else {
        receive_grads(arrival, edges[e], compute.microbatch());
      }
    }
    arrival.is_early = true;
    values.push_back(&arrival.values);
  }
  return values;
}

std::vector<std::vector<c10::IValue>*> Router::outgoing(Action compute) {
  std::vector<std::vector<c10::IValue>*> values;
  Cell& c = cell(compute);
  const StageWires& w = wires(compute);
  const bool is_forward = compute.type() == ActionType::kForward;
  if (compute.type() == ActionType::kBackwardWeight) return values;
  const auto& edges = is_forward ? w.out : w.in;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    if (!edges[e].is_local) values.push_back(is_forward ? &c.outgoing[e] : &c.outgoing_grads[e]);
  }
  return values;
}

Router::Taken Router::save_taken(Action compute) {
  const StageWires& w = wires(compute);
  const auto& edges = compute.type() == ActionType::kForward ? w.in : w.out;
  const std::vector<Arrival>& arrivals = taken_by(compute);
  Taken taken;
  for (std::size_t e = 0; e < arrivals.size(); ++e) {
    SC_ASSERT(edges[e].is_local || arrivals[e].is_early);
    taken.values.push_back(arrivals[e].values);
    taken.is_early.push_back(arrivals[e].is_early);
  }
  return taken;
}

void Router::restore_taken(Action compute, const Taken& taken) {
  std::vector<Arrival>& arrivals = taken_by(compute);
  SC_ASSERT(taken.values.size() == arrivals.size());
  for (std::size_t e = 0; e < arrivals.size(); ++e) {
    arrivals[e].values = taken.values[e];
    arrivals[e].is_early = taken.is_early[e];
  }
}

void Router::take_grads(Cell& cell, const WireEdge& edge, std::size_t e, MicrobatchId m) {
  if (edge.is_local) return;
  Arrival& arrival = cell.grads[e];
  if (!std::exchange(arrival.is_early, false)) receive_grads(arrival, edge, m);
  const std::size_t expected =
      edge.connections.size() + (edge.has_chain ? cell.chain_outputs.size() : 0);
  require<MetadataError>(
      arrival.values.size() == expected,
      "stage {} sent {} gradients to stage {}, expected {}: the ranks do not agree "
      "on the ports",
      edge.to.value(), arrival.values.size(), edge.from.value(), expected);
}

std::vector<c10::IValue> Router::take_output_grads(Action backward) {
  Cell& c = cell(backward);
  const StageWires& w = wires(backward);
  check_shared_outputs(backward.stage(), c);
  std::vector<c10::IValue> sums(c.num_outputs);
  // Last reader first: the order in which the unsplit model adds the gradients.
  for (std::size_t e = w.out.size(); e-- > 0;) {
    const WireEdge& edge = w.out[e];
    Arrival& arrival = c.grads[e];
    take_grads(c, edge, e, backward.microbatch());
    for (std::size_t i = arrival.values.size(); i-- > 0;) {
      const std::size_t explicit_values = edge.connections.size();
      const auto output =
          static_cast<std::size_t>(i < explicit_values ? edge.connections[i].from.output
                                                       : c.chain_outputs[i - explicit_values]);
      sums[output] = add_grad_values(sums[output], arrival.values[i]);
    }
    arrival.values.clear();
  }
  return sums;
}

void Router::put_input_grads(Action backward, std::vector<c10::IValue> grads) {
  Cell& c = cell(backward);
  const StageWires& w = wires(backward);
  require<ArgumentError>(grads.size() == c.origins.size(),
                         "stage {} has {} arguments, got {} gradients", backward.stage().value(),
                         c.origins.size(), grads.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const ArgumentOrigin& origin = c.origins[i];
    if (origin.edge < 0) continue;
    auto& values = c.outgoing_grads[static_cast<std::size_t>(origin.edge)];
    const auto item = static_cast<std::size_t>(origin.item);
    if (values.size() <= item) values.resize(item + 1);
    values[item] = std::move(grads[i]);
  }
  for (const auto& [argument, value] : c.model_inputs) {
    const std::vector<at::Tensor> tensors = tensors_of(value);
    const std::vector<at::Tensor> arrived = grads_of(grads[argument], tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!arrived[i].defined()) continue;
      model_grads_.emplace_back(tensors[i], arrived[i].to(tensors[i].device()));
    }
  }
  c.model_inputs.clear();
  for (std::size_t e = 0; e < w.in.size(); ++e) {
    const WireEdge& edge = w.in[e];
    if (!edge.is_local) continue;
    Arrival& arrival = cell(edge.peer_stage, backward.microbatch())
                           .grads[static_cast<std::size_t>(edge.peer_edge)];
    arrival.values = std::move(c.outgoing_grads[e]);
    c.outgoing_grads[e].clear();
  }
}

void Router::post_receives(Action receive) {
  Cell& c = cell(receive);
  const StageWires& w = wires(receive);
  const bool is_forward = receive.type() == ActionType::kRecvForward;
  const auto& edges = is_forward ? w.in : w.out;
  std::vector<Arrival>& arrivals = is_forward ? c.inputs : c.grads;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    if (edges[e].is_local) continue;
    arrivals[e].receive =
        transfers_.post_receive(edges[e].peer, id_of(edges[e], receive.microbatch(), is_forward));
  }
}

void Router::send(Action send) {
  Cell& c = cell(send);
  const StageWires& w = wires(send);
  const MicrobatchId m = send.microbatch();
  const bool is_forward = send.type() == ActionType::kSendForward;
  const auto& edges = is_forward ? w.out : w.in;
  auto& outgoing = is_forward ? c.outgoing : c.outgoing_grads;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    if (edges[e].is_local) continue;
    std::vector<c10::IValue> values = std::exchange(outgoing[e], {});
    if (is_forward) {
      values.emplace_back(weight(m));
      values.emplace_back(static_cast<int64_t>(microbatches_));
    }
    transfers_.post_send(send, edges[e].peer, id_of(edges[e], m, is_forward), std::move(values));
  }
}

void Router::watch_shared_outputs(const StageWires& wires, Cell& cell,
                                  std::span<const c10::IValue> outputs) const {
  for (std::size_t n = 0; n < outputs.size(); ++n) {
    std::ptrdiff_t readers = 0;
    for (const WireEdge& edge : wires.out) {
      readers += std::count_if(edge.connections.begin(), edge.connections.end(),
                               [&](const Ports::Connection& connection) {
                                 return connection.from.output == static_cast<int32_t>(n);
                               });
    }
    if (readers < 2) continue;
    for_each_tensor(outputs[n], [&](const at::Tensor& tensor) {
      const auto& counter = torch::autograd::impl::version_counter(tensor);
      cell.shared.emplace_back(counter, counter.current_version());
    });
  }
}

void Router::check_shared_outputs(StageId stage, Cell& cell) {
  for (const auto& [counter, version] : cell.shared) {
    require<ArgumentError>(counter.current_version() == version,
                           "an output of stage {} that several stages read was changed in place by "
                           "one of them; that stage must work on a copy",
                           stage.value());
  }
  cell.shared.clear();
}

}  // namespace stagecraft
