#include "tests/zoo_pt2/zoo.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/graph/run/program.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Bit for bit: NaN equals NaN, 0 is not -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor left = a.detach().resolve_conj().resolve_neg().contiguous();
  const at::Tensor right = b.detach().resolve_conj().resolve_neg().contiguous();
  return left.numel() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

std::string difference(const std::string& what, const c10::IValue& expected,
                       const c10::IValue& got) {
  const bool both = expected.isTensor() && got.isTensor() && expected.toTensor().defined() &&
                    got.toTensor().defined();
  if (both && same_bits(expected.toTensor(), got.toTensor())) return "";
  if (!both && !expected.isTensor() && !got.isTensor() && tree::leaf_equal(expected, got))
    return "";
  std::string far;
  if (both && expected.toTensor().sizes() == got.toTensor().sizes() &&
      expected.toTensor().is_floating_point()) {
    far = fmt::format(", by up to {}",
                      expected.toTensor().sub(got.toTensor()).abs().max().item().toDouble());
  }
  return fmt::format("{}: expected {}, got {}{}", what, describe(expected), describe(got), far);
}

c10::IValue copy_of(const c10::IValue& value) {
  return tree::map(value, [](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    return leaf.toTensor().detach().clone().requires_grad_(leaf.toTensor().requires_grad());
  });
}

std::vector<at::Tensor> tensors_of(const Arguments& arguments) {
  std::vector<at::Tensor> result;
  auto add = [&](const c10::IValue& value) {
    for (const c10::IValue& leaf : tree::flatten(value).leaves) {
      if (leaf.isTensor() && leaf.toTensor().defined()) result.push_back(leaf.toTensor());
    }
  };
  for (const c10::IValue& value : arguments.args) add(value);
  for (const auto& [name, value] : arguments.kwargs) add(value);
  return result;
}

std::string compare_outputs(const oracle::Case& one, const std::vector<c10::IValue>& outputs) {
  const auto expected = one.get("outputs").toListRef().vec();
  if (expected.size() != outputs.size()) {
    return fmt::format("expected {} outputs, got {}", expected.size(), outputs.size());
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::string found = difference(fmt::format("output {}", i), expected[i], outputs[i]);
    if (!found.empty()) return found;
  }
  return "";
}

void run_backward(const oracle::Case& one, const std::vector<c10::IValue>& outputs) {
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> seeds;
  const auto given = one.get("grad_outputs").toListRef().vec();
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].isTensor()) continue;
    roots.push_back(outputs[i].toTensor());
    seeds.push_back(given[i].toTensor());
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

std::string compare_states(const oracle::Case& one, const Graph& graph) {
  for (const auto& entry : one.get("grads").toGenericDict()) {
    const std::string& name = entry.key().toStringRef();
    const GraphState* state = graph.find_state(name);
    if (state == nullptr) return fmt::format("there is no parameter {}", name);
    const at::Tensor grad = state->tensor.grad();
    if (entry.value().isNone() && !grad.defined()) continue;
    std::string found = difference("gradient of " + name, entry.value(),
                                   grad.defined() ? c10::IValue(grad) : c10::IValue());
    if (!found.empty()) return found;
  }
  for (const auto& entry : one.get("buffers").toGenericDict()) {
    const std::string& name = entry.key().toStringRef();
    const GraphState* state = graph.find_state(name);
    // A buffer that the model never reads may not be in the archive.
    if (state == nullptr) continue;
    std::string found = difference("buffer " + name, entry.value(), state->tensor);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

std::string zoo_path(const std::string& file) {
  const char* folder = std::getenv("SC_ZOO_FOLDER");
  return std::string(folder == nullptr ? SC_ZOO_FOLDER : folder) + "/" + file;
}

std::vector<ZooEntry> read_zoo() {
  std::ifstream file(zoo_path("index.json"));
  if (!file) throw Error("there is no index.json; run export_zoo.py first");
  const char* only = std::getenv("SC_ZOO_ONLY");
  std::vector<ZooEntry> zoo;
  for (const auto& each : nlohmann::json::parse(file)) {
    ZooEntry entry;
    entry.name = each.at("name");
    entry.kind = each.at("kind");
    entry.names = each.value("names", "");
    if (each.contains("trainable_loss") && !each.at("trainable_loss").is_null()) {
      entry.loss = each.at("trainable_loss").get<std::size_t>();
    }
    entry.has_static = each.value("static", false);
    const std::string wanted = only == nullptr ? "" : fmt::format(",{},", only);
    if (!wanted.empty() && wanted.find("," + entry.name + ",") == std::string::npos) continue;
    zoo.push_back(std::move(entry));
  }
  return zoo;
}

Arguments arguments_of(const oracle::Case& one) {
  Arguments result;
  const c10::IValue args = one.get("args");
  for (const c10::IValue& value : args.toTupleRef().elements()) {
    result.args.push_back(copy_of(value));
  }
  for (const auto& entry : one.get("kwargs").toGenericDict()) {
    result.kwargs.set(entry.key().toStringRef(), copy_of(entry.value()));
  }
  return result;
}

std::string compare_with_case(const Graph& graph, const oracle::Case& one) {
  const GraphProgram program(graph);
  return compare_with_case(graph, one, [&](const Arguments& arguments) {
    return program.run(arguments.args, arguments.kwargs);
  });
}

std::string compare_with_case(const Graph& graph, const oracle::Case& one,
                              const std::function<c10::IValue(const Arguments&)>& run) {
  const Arguments arguments = arguments_of(one);
  at::manual_seed(static_cast<uint64_t>(one.integer("seed")));
  const c10::IValue output = run(arguments);
  const std::vector<c10::IValue> outputs = tree::flatten(output).leaves;
  if (std::string found = compare_outputs(one, outputs); !found.empty()) return found;
  run_backward(one, outputs);
  if (std::string found = compare_states(one, graph); !found.empty()) return found;
  const std::vector<at::Tensor> inputs = tensors_of(arguments);
  if (one.has("input_grads")) {
    const auto expected = one.get("input_grads").toListRef().vec();
    std::size_t i = 0;
    for (const at::Tensor& input : inputs) {
      if (!input.requires_grad()) continue;
      if (i >= expected.size()) return "more inputs have gradients than expected";
      std::string found =
          difference(fmt::format("gradient of input {}", i), expected[i],
                     input.grad().defined() ? c10::IValue(input.grad()) : c10::IValue());
      if (!found.empty()) return found;
      ++i;
    }
  }
  if (one.has("inputs_after")) {
    const auto expected = one.get("inputs_after").toListRef().vec();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::string found =
          difference(fmt::format("input {} afterwards", i), expected[i], inputs.at(i));
      if (!found.empty()) return found;
    }
  }
  return "";
}

std::string check_shared_memory(const Graph& graph, const Arguments& arguments) {
  GraphParts parts = graph.parts();
  parts.outputs.clear();
  for (ValueId v(0); parts.values.contains(v); ++v) parts.outputs.emplace_back(v);
  parts.output = TreeSpec::tuple(std::vector<TreeSpec>(parts.outputs.size()));
  const c10::IValue values = GraphProgram(Graph(parts)).run(arguments.args, arguments.kwargs);
  std::map<const void*, ValueId> first;
  const auto& elements = values.toTupleRef().elements();
  for (std::size_t v = 0; v < elements.size(); ++v) {
    const at::Tensor& tensor = elements[v].toTensor();
    if (!tensor.defined() || !tensor.has_storage() || tensor.nbytes() == 0) continue;
    const ValueId id(static_cast<int32_t>(v));
    const auto [found, is_new] = first.try_emplace(tensor.storage().data(), id);
    const GraphValue& a = parts.values[found->second];
    const GraphValue& b = parts.values[id];
    if (!is_new && (a.memory < 0 || a.memory != b.memory)) {
      return fmt::format("%{} and %{} share memory", a.name, b.name);
    }
  }
  return "";
}

}  // namespace stagecraft
