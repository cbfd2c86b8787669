#include "cli/model/json.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "stagecraft/base/json_text.h"

namespace stagecraft::cli {
namespace {

using Json = nlohmann::ordered_json;

Json optional_text(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json to_json(const LeafFacts& leaf) {
  switch (leaf.kind) {
    case LeafFacts::Kind::kTensor:
      return {{"path", leaf.path},
              {"kind", "tensor"},
              {"dtype", leaf.dtype},
              {"shape", leaf.shape},
              {"example", leaf.example}};
    case LeafFacts::Kind::kNumber:
      return {{"path", leaf.path}, {"kind", "number"}, {"value", leaf.value}};
    case LeafFacts::Kind::kFixed:
      break;
  }
  return {{"path", leaf.path}, {"kind", "fixed"}, {"value", leaf.value}};
}

Json to_json(const SizeFacts& size) {
  return {{"name", size.name},
          {"example", size.example},
          {"least", size.least ? Json(*size.least) : Json()},
          {"greatest", size.greatest ? Json(*size.greatest) : Json()},
          {"follows", optional_text(size.follows)}};
}

Json to_json(const TensorsFacts& group) {
  return {{"tensors", group.tensors}, {"elements", group.elements}, {"bytes", group.bytes}};
}

Json to_json(const ModuleFacts& module) {
  return {{"name", module.name},
          {"operators", module.operators},
          {"own_operators", module.own_operators},
          {"parameters", module.parameters},
          {"parameter_bytes", module.parameter_bytes},
          {"flops", module.flops}};
}

Json to_json(const Boundary& boundary) {
  return {{"position", boundary.position},
          {"before", boundary.node},
          {"module", boundary.module},
          {"split", boundary.names},
          {"bytes", boundary.bytes},
          {"flops_before", boundary.flops_before},
          {"parameters_before", boundary.parameters_before},
          {"why_not", optional_text(boundary.why_not)}};
}

Json to_json(const StageFacts& stage) {
  Json modules = Json::array();
  for (const StagePart& part : stage.parts) {
    modules.push_back(
        {{"name", part.name}, {"operators", part.operators}, {"whole", part.is_whole}});
  }
  Json receives = Json::array();
  for (const CrossingFacts& value : stage.receives) {
    receives.push_back({{"value", value.name},
                        {"type", value.type},
                        {"bytes", value.bytes},
                        {"from", value.from},
                        {"to", value.to}});
  }
  return {{"name", stage.summary.name},
          {"position", stage.first},
          {"begins", optional_text(stage.begins)},
          {"operators", stage.summary.operators},
          {"parameters", stage.summary.parameters},
          {"parameter_bytes", stage.summary.parameter_bytes},
          {"flops", stage.summary.flops},
          {"bytes_sent", stage.summary.bytes_sent},
          {"modules", std::move(modules)},
          {"crossing", std::move(receives)}};
}

Json to_json(const SplitFacts& split) {
  Json stages = Json::array();
  for (const StageFacts& stage : split.stages) stages.push_back(to_json(stage));
  Json ties = Json::array();
  for (const TiedWeight& tie : split.ties) {
    Json copies = Json::array();
    for (const ParameterRef& copy : tie) {
      copies.push_back({{"stage", copy.stage.value()}, {"name", copy.name}});
    }
    ties.push_back(std::move(copies));
  }
  Json at_modules;
  if (split.at_modules) {
    at_modules = {{"split", split.at_modules->names},
                  {"flops", split.at_modules->flops},
                  {"bytes", split.at_modules->bytes}};
  }
  return {{"split", split.split ? Json(*split.split) : Json()},
          {"at_modules", std::move(at_modules)},
          {"stages", std::move(stages)},
          {"tied", std::move(ties)}};
}

template <typename Facts>
Json list_of(const std::vector<Facts>& all) {
  Json list = Json::array();
  for (const Facts& each : all) list.push_back(to_json(each));
  return list;
}

Json to_json(const ProgramView& view) {
  Json modules = Json::array();
  for (const std::size_t number : view.tree.in_order()) {
    modules.push_back(to_json(view.tree.module(number)));
  }
  return {{"name", view.name},
          {"torch_version", view.torch_version},
          {"warnings", view.warnings},
          {"inputs", list_of(view.facts.inputs)},
          {"outputs", list_of(view.facts.outputs)},
          {"sizes", list_of(view.facts.sizes)},
          {"conditions", view.facts.conditions},
          {"operators", view.graph.parts().nodes.size()},
          {"flops", view.costs.total_flops},
          {"parameters",
           {{"all", to_json(view.facts.parameters())},
            {"trained", to_json(view.facts.trained)},
            {"frozen", to_json(view.facts.frozen)}}},
          {"buffers", to_json(view.facts.buffers)},
          {"constants", to_json(view.facts.constants)},
          {"tied", view.facts.tied},
          {"modules", std::move(modules)},
          {"boundaries", list_of(view.boundaries)},
          {"splits", list_of(view.splits)},
          {"not_split", view.not_split}};
}

}  // namespace

std::string views_json(const std::string& file, const std::vector<std::string>& programs,
                       const std::vector<ProgramView>& views) {
  Json models = Json::array();
  for (const ProgramView& view : views) models.push_back(to_json(view));
  const Json json = {{"file", file}, {"programs", programs}, {"models", std::move(models)}};
  return json_to_text(json, {.indent = 2, .repair = true}) + '\n';
}

}  // namespace stagecraft::cli
