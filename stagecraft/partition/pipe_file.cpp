#include "stagecraft/partition/pipe_file.h"

#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/json_text.h"

namespace stagecraft {

namespace {

using nlohmann::json;

json to_json(const StageSource& source) {
  if (const auto* argument = std::get_if<FromArgument>(&source))
    return {{"argument", argument->argument}};
  const auto& output = std::get<OutputPort>(source);
  return {{"stage", output.stage.value()}, {"output", output.output}};
}

StageSource source_of(const json& entry) {
  if (entry.contains("argument")) return FromArgument{entry.at("argument").get<int32_t>()};
  return OutputPort{StageId(entry.at("stage").get<int32_t>()), entry.at("output").get<int32_t>()};
}

std::string stage_record(std::size_t stage) {
  return fmt::format("stages/{}", stage);
}

json read_plan(ArchiveReader& in) {
  if (!in.has("pipe")) in.fail("it does not contain a pipe");
  json plan = try_json_from_text(in.text("pipe"));
  if (!plan.is_object() || !plan.contains("stages") || !plan["stages"].is_array() ||
      plan["stages"].empty()) {
    in.fail("its plan is damaged");
  }
  return plan;
}

/// Whether every source of every stage exists, so that a damaged plan cannot cause a read beyond
/// the end of a list.
bool is_whole(const Graph& model, const std::vector<StagePlan>& stages) {
  for (std::size_t k = 0; k < stages.size(); ++k) {
    if (stages[k].sources.size() != stages[k].graph.parts().args.children().size()) return false;
    for (const StageSource& source : stages[k].sources) {
      if (const auto* argument = std::get_if<FromArgument>(&source)) {
        const auto count = static_cast<int32_t>(model.parts().args.children().size());
        if (argument->argument < 0 || argument->argument >= count) return false;
      } else {
        const auto& output = std::get<OutputPort>(source);
        if (output.stage.value() < 0 || output.stage.position() >= k) return false;
        const Graph& from = stages[output.stage.position()].graph;
        const auto count = static_cast<int32_t>(from.parts().outputs.size());
        if (output.output < 0 || output.output >= count) return false;
      }
    }
  }
  return true;
}

}  // namespace

void save_pipe(const Pipe& pipe, const std::string& path) {
  ArchiveWriter out(path);
  out.add_graph("model", pipe.graph());
  json plan = {{"stages", json::array()}, {"ties", json::array()}};
  for (std::size_t i = 0; i < pipe.plan().stages.size(); ++i) {
    const StagePlan& stage = pipe.plan().stages[i];
    out.add_graph(stage_record(i), stage.graph);
    json sources = json::array();
    for (const StageSource& source : stage.sources) sources.push_back(to_json(source));
    plan["stages"].push_back({{"sources", std::move(sources)}});
  }
  for (const TiedWeight& tie : pipe.ties()) {
    json copies = json::array();
    for (const ParameterRef& ref : tie)
      copies.push_back({{"stage", ref.stage.value()}, {"name", ref.name}});
    plan["ties"].push_back(std::move(copies));
  }
  out.add_text("pipe", json_to_text(plan));
  out.finish();
}

namespace {

Pipe pipe_of(ArchiveReader& in) {
  const json read = read_plan(in);
  Graph model = in.graph("model");
  PipePlan plan;
  try {
    for (std::size_t i = 0; i < read.at("stages").size(); ++i) {
      StagePlan stage{.graph = in.graph(stage_record(i)), .sources = {}};
      for (const json& source : read.at("stages")[i].at("sources")) {
        stage.sources.push_back(source_of(source));
      }
      plan.stages.push_back(std::move(stage));
    }
    for (const json& copies : read.at("ties")) {
      TiedWeight tie;
      for (const json& ref : copies) {
        tie.push_back({StageId(ref.at("stage").get<int32_t>()), ref.at("name").get<std::string>()});
      }
      plan.ties.push_back(std::move(tie));
    }
  } catch (const json::exception&) {
    in.fail("its plan is damaged");
  }
  if (!is_whole(model, plan.stages)) in.fail("its plan is damaged");
  return Pipe::of_plan(std::move(model), std::move(plan));
}

}  // namespace

Pipe load_pipe(const std::string& path) {
  ArchiveReader in(path);
  return pipe_of(in);
}

Pipe load_pipe(const std::string& name, std::span<const std::byte> bytes) {
  ArchiveReader in(name, bytes);
  return pipe_of(in);
}

Graph load_stage(const std::string& path, StageId stage) {
  ArchiveReader in(path);
  const auto count = static_cast<int32_t>(read_plan(in).at("stages").size());
  require<ArgumentError>(stage.value() >= 0 && stage.value() < count,
                         "expected a stage from 0 to {}, got {}", count - 1, stage.value());
  return in.graph(stage_record(stage.position()));
}

}  // namespace stagecraft
