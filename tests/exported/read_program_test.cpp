#include "stagecraft/exported/read_program.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/exported/small_archive.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

using Json = nlohmann::json;

RawProgram read_text(const Json& model) {
  return read_program(model.dump(), "model.json");
}

TEST(ReadProgram, TakesInWhatThereIs) {
  const RawProgram program = read_text(SmallArchive::rich().model);
  EXPECT_EQ(program.graph.nodes.size(), 13U);
  EXPECT_EQ(program.graph.nodes[0].target, "torch.ops.aten.linear.default");
  EXPECT_EQ(program.graph.nodes[0].module, "fc");
  EXPECT_EQ(program.graph.tensors.at("left").sizes[1].number, 2);
  EXPECT_EQ(program.graph.tensors.at("x").sizes[0].hint, 3);
  EXPECT_EQ(program.graph.symbols.size(), 2U);
  EXPECT_EQ(program.inputs.size(), 5U);
  EXPECT_EQ(program.outputs[0].kind, RawOutputSpec::Kind::kStateChange);
  EXPECT_EQ(program.argument_names, std::vector<std::string>{"x"});
  EXPECT_EQ(program.ranges.at("s0").least, 2);
  EXPECT_EQ(program.guards.size(), 2U);
  EXPECT_EQ(program.torch_version, "2.13.0");
}

TEST(ReadProgram, RefusesWhatIsNoJson) {
  const std::string text = SmallArchive::linear().model.dump();
  for (std::size_t size = 0; size < text.size(); size += 7) {
    EXPECT_ERROR(read_program(text.substr(0, size), "model.json"), FileError,
                 "model.json is not JSON: ");
  }
  EXPECT_ERROR(read_program(text + "}", "model.json"), FileError, "model.json is not JSON: ");
  EXPECT_ERROR(read_program("[]", "model.json"), FileError,
               "model.json: expected an object, got array");
}

struct ReadProgramCase {
  std::function<void(SmallArchive&)> change;
  std::string message;
};

/// Puts an argument in the place of a node's first.
std::function<void(SmallArchive&)> argument(const Json& argument) {
  return [argument](SmallArchive& a) { a.nodes()[0]["inputs"][0]["arg"] = argument; };
}

TEST(ReadProgram, NamesThePlaceOfWhatIsWrong) {
  const std::string node = "model.json: graph.nodes[0]";
  const std::string arg = node + ".inputs[0].arg";
  const std::string x = "model.json: graph.tensor_values.x";
  const std::string signature = "model.json.graph_module.signature";
  const std::vector<ReadProgramCase> cases = {
      {[](SmallArchive& a) { a.model.erase("schema_version"); },
       "model.json: expected a member 'schema_version', got none"},
      {[](SmallArchive& a) { a.model["schema_version"]["major"] = 9; },
       "model.json: it is written in version 9 of the format, expected 8"},
      {[](SmallArchive& a) { a.model["schema_version"]["major"] = "8"; },
       "model.json.schema_version.major: expected a whole number, got string"},
      {[](SmallArchive& a) { a.model["graph_module"] = 3; },
       "model.json.graph_module: expected an object, got number"},
      {[](SmallArchive& a) { a.graph().erase("nodes"); },
       "model.json.graph_module.graph: expected a member 'nodes', got none"},
      {[](SmallArchive& a) { a.nodes() = 5; },
       "model.json.graph_module.graph.nodes: expected a list, got number"},
      {[](SmallArchive& a) { a.nodes() = Json::object(); },
       "model.json.graph_module.graph.nodes: expected a list, got object"},
      {[](SmallArchive& a) { a.nodes()[1] = 5; },
       "model.json: graph.nodes[1]: expected an object, got number"},
      {[](SmallArchive& a) { a.nodes()[1] = nullptr; },
       "model.json: graph.nodes[1]: expected an object, got null"},
      {[](SmallArchive& a) { a.tensors() = Json::array(); },
       "model.json.graph_module.graph.tensor_values: expected an object, got array"},
      {[](SmallArchive& a) { a.tensors()["x"] = "x"; }, x + ": expected an object, got string"},
      {[](SmallArchive& a) { a.tensors()["x"]["dtype"] = 99; }, x + ".dtype: there is no dtype 99"},
      {[](SmallArchive& a) { a.tensors()["x"]["dtype"] = 0; }, x + ".dtype: there is no dtype 0"},
      {[](SmallArchive& a) { a.tensors()["x"]["layout"] = 0; },
       x + ".layout: there is no layout 0"},
      {[](SmallArchive& a) { a.tensors()["x"]["layout"] = 8; }, "there is no layout 8"},
      {[](SmallArchive& a) { a.tensors()["x"]["device"]["type"] = "gpu"; },
       x + ".device: there is no device 'gpu'"},
      {[](SmallArchive& a) { a.tensors()["x"]["device"]["type"] = ""; }, "there is no device ''"},
      {[](SmallArchive& a) { a.tensors()["x"]["device"]["index"] = 1000; },
       x + ".device: there is no device 1000"},
      {[](SmallArchive& a) { a.tensors()["x"]["device"]["index"] = -1; }, "there is no device -1"},
      {[](SmallArchive& a) { a.tensors()["x"]["sizes"] = 3; }, x + ".sizes: expected a list"},
      {[](SmallArchive& a) {
         a.tensors()["x"]["sizes"][1] = {{"as_what", 1}};
       },
       x + ".sizes[1]: expected a number or an expression, got 'as_what'"},
      {[](SmallArchive& a) {
         a.tensors()["x"]["sizes"][1] = {{"as_int", 1}, {"as_expr", 1}};
       },
       x + ".sizes[1]: expected one member, got 2"},
      {[](SmallArchive& a) {
         a.tensors()["x"]["sizes"][1] = {{"as_int", 1e30}};
       },
       x + ".sizes[1].as_int: expected a whole number, got number"},
      {[](SmallArchive& a) { a.tensors()["x"]["requires_grad"] = 1; },
       x + ".requires_grad: expected true or false, got number"},
      {[](SmallArchive& a) { a.nodes()[0].erase("target"); },
       node + ": expected a member 'target'"},
      {[](SmallArchive& a) { a.nodes()[0]["name"] = 3; }, node + ".name: expected a text"},
      {[](SmallArchive& a) { a.nodes()[0]["metadata"]["nn_module_stack"] = 3; },
       node + ".metadata.nn_module_stack: expected a text, got number"},
      {[](SmallArchive& a) {
         a.nodes()[0]["outputs"] = {{"a", 1}};
       },
       node + ".outputs: expected a list, got object"},
      {argument(Json::object()), arg + ": expected one member, got 0"},
      {argument({{"as_what", 1}}), arg + ": there is no kind of argument 'as_what'"},
      {argument({{"as_tensor", {{"name", 3}}}}), arg + ".as_tensor.name: expected a text"},
      {argument({{"as_tensor", "x"}}), arg + ".as_tensor: expected an object, got string"},
      {argument({{"as_ints", {1, "2"}}}), arg + ".as_ints[1]: expected a whole number, got string"},
      {argument({{"as_ints", 1}}), arg + ".as_ints: expected a list, got number"},
      {argument({{"as_float", "pi"}}), arg + ".as_float: expected a number, got string"},
      {argument({{"as_bool", 1}}), arg + ".as_bool: expected true or false, got number"},
      {argument({{"as_scalar_type", 14}}), arg + ".as_scalar_type: there is no dtype 14"},
      {argument({{"as_memory_format", 5}}), arg + ".as_memory_format: there is no memory format 5"},
      {argument({{"as_sym_int", {{"as_text", 1}}}}),
       arg + ".as_sym_int: expected a name or a number, got 'as_text'"},
      {argument({{"as_optional_tensors", Json::array({{{"as_int", 1}}})}}),
       arg + ".as_optional_tensors[0]: expected a tensor or none, got 'as_int'"},
      {argument({{"as_graph", {{"name", "g"}, {"graph", {{"nodes", 3}}}}}}),
       arg + ".as_graph.graph.nodes: expected a list, got number"},
      {[](SmallArchive& a) {
         a.signature()["input_specs"][0] = {{"token", {{"arg", 1}}}};
       },
       signature + ".input_specs[0]: an input of the kind 'token' is not supported"},
      {[](SmallArchive& a) {
         a.signature()["output_specs"][0] = {{"token", {{"arg", 1}}}};
       },
       signature + ".output_specs[0]: an output of the kind 'token' is not supported"},
      {[](SmallArchive& a) { a.model["graph_module"]["module_call_graph"] = Json::array(); },
       "model.json.graph_module: it does not say what the model takes and returns"},
      {[](SmallArchive& a) { a.model["range_constraints"]["s0"]["min_val"] = 1.5; },
       "model.json.range_constraints.s0.min_val: expected a whole number, got number"},
      {[](SmallArchive& a) { a.model["range_constraints"]["s0"]["max_val"] = 1; },
       "model.json.range_constraints.s0: expected a range, got 2 to 1"},
      {[](SmallArchive& a) { a.model["guards_code"] = {1}; },
       "model.json.guards_code[0]: expected a text, got number"},
      {[](SmallArchive& a) { a.model["torch_version"] = 2; },
       "model.json.torch_version: expected a text, got number"},
  };
  for (const ReadProgramCase& each : cases) {
    SmallArchive archive = SmallArchive::linear();
    each.change(archive);
    EXPECT_ERROR(read_text(archive.model), FileError, each.message) << each.message;
    EXPECT_ERROR(load(archive), FileError, ".pt2: models/model.json") << each.message;
  }
}

TEST(ReadProgram, RefusesKeysThatComeTwice) {
  std::string text = SmallArchive::linear().model.dump();
  const std::size_t at = text.find(R"("x":{"device")");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 3, R"("x":{},"x")");
  EXPECT_ERROR(read_program(text, "model.json"), FileError, "graph.tensor_values.x");
  EXPECT_ERROR(read_program(R"({"a": 1, "a": 2})", "model.json"), FileError,
               "model.json: the key 'a' appears twice in an object");
}

TEST(ReadProgram, RefusesGraphsThatNestTooDeep) {
  SmallArchive archive = SmallArchive::rich();
  Json region;
  for (const Json& node : archive.nodes()) {
    if (node["target"] == "torch.ops.higher_order.wrap_with_set_grad_enabled") region = node;
  }
  Json inner = region["inputs"][1]["arg"];
  for (int depth = 0; depth < 40; ++depth) {
    Json outer = region["inputs"][1]["arg"];
    Json call = region;
    call["inputs"][1]["arg"] = inner;
    outer["as_graph"]["graph"]["nodes"] = Json::array({call});
    inner = outer;
  }
  archive.nodes()[0]["inputs"][0]["arg"] = inner;
  EXPECT_ERROR(read_text(archive.model), FileError, "graphs nest deeper than 32");
}

TEST(ReadProgram, ReadsWhereWeightsAre) {
  EXPECT_EQ(read_payloads(SmallArchive::linear().weights.dump(), "w").size(), 2U);
  EXPECT_ERROR(read_payloads("{", "w.json"), FileError, "w.json is not JSON: ");
  EXPECT_ERROR(read_payloads("{}", "w.json"), FileError, "w.json: expected a member 'config'");
  EXPECT_ERROR(read_payloads(R"({"config": {"a.b": {"path_name": 3}}})", "w.json"), FileError,
               "w.json.config.a.b.path_name: expected a text, got number");
  EXPECT_ERROR(read_payloads(R"({"config": {"a": {"path_name": "x"}}})", "w.json"), FileError,
               "w.json.config.a: expected a member 'use_pickle', got none");
}

}  // namespace
}  // namespace stagecraft::exported
