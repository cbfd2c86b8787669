#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/run/program.h"
#include "tests/exported/small_archive.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;

struct HostileCase {
  std::function<void(SmallArchive&)> change;
  std::string message;
};

/// Expects that each is refused with an error that names the file.
template <typename E>
void expect_program_refused(const std::vector<HostileCase>& cases) {
  for (const HostileCase& each : cases) {
    SmallArchive archive = SmallArchive::rich();
    each.change(archive);
    const TempFile file(archive.bytes());
    EXPECT_ERROR(load_exported(file.path()), E, each.message) << each.message;
    EXPECT_ERROR(load_exported(file.path()), E, file.path() + ": ") << each.message;
  }
}

Json number_field(int64_t value) {
  return {{"as_int", value}};
}

Json& find_node(SmallArchive& archive, const std::string& target) {
  for (Json& node : archive.nodes()) {
    if (node["target"].get<std::string>().find(target) != std::string::npos) return node;
  }
  throw ArgumentError("no such node");
}

TEST(HostileProgram, NodesThatContradictEachOther) {
  expect_program_refused<GraphError>({
      {[](SmallArchive& a) { std::swap(a.nodes()[0], a.nodes()[1]); },
       "node relu (torch.ops.aten.relu.default) in fc: linear is read before it is made"},
      {[](SmallArchive& a) { a.nodes()[0]["inputs"][0]["arg"] = tensor_name("linear"); },
       "node linear (torch.ops.aten.linear.default) in fc: linear is read before it is made"},
      // Two that wait for each other.
      {[](SmallArchive& a) { a.nodes()[0]["inputs"][0]["arg"] = tensor_name("relu"); },
       "relu is read before it is made"},
      {[](SmallArchive& a) { a.nodes()[1]["inputs"][0]["arg"] = tensor_name("nothing"); },
       "nothing is read before it is made"},
      {[](SmallArchive& a) { a.tensors().erase("linear"); },
       "the archive does not say what the tensor linear is"},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = "torch.ops.aten.lineal.default"; },
       "this process has no operator aten::lineal. It comes from torch, of a different version. "
       "export the model with the version of torch that runs it"},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = "torch.ops.transformers.route.default"; },
       "this process has no operator transformers::route. It comes from transformers of Hugging "
       "Face. "},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = "torch.ops.own.twice.scaled"; },
       "this process has no operator own::twice.scaled. It comes from the library that registers "
       "own::*. If the library has a part in C++, load it first"},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = "torch.ops.aten"; },
       "expected namespace.name.overload, got 'aten'"},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = "os.system"; },
       "there is no operator for os.system, which is a function of Python"},
      {[](SmallArchive& a) { a.nodes()[0]["target"] = ""; }, "there is no operator for "},
      {[](SmallArchive& a) { a.nodes()[0]["inputs"][0]["name"] = "weight"; },
       "the operator takes no argument 'weight', or it is given twice"},
      {[](SmallArchive& a) { a.nodes()[0]["inputs"] = Json::array(); },
       "expected an argument 'input', got none"},
      {[](SmallArchive& a) {
         a.nodes()[0]["inputs"][0]["arg"] = {{"as_string", "x"}};
       },
       "linear: aten::linear takes 'input' as Tensor, got a different kind"},
      {[](SmallArchive& a) {
         a.nodes()[0]["outputs"].push_back(tensor_name("relu"));
         a.nodes()[0]["outputs"].push_back(tensor_name("add"));
       },
       "the operator returns 1 values, and the archive has 3"},
      {[](SmallArchive& a) {
         a.nodes()[0]["outputs"][0] = {{"as_tensors", {{{"name", "linear"}}}}};
       },
       "got a different kind"},
      {[](SmallArchive& a) { find_node(a, "cond")["inputs"][1]["arg"] = tensor_name("x"); },
       "expected a graph as argument 1"},
      {[](SmallArchive& a) { find_node(a, "cond")["inputs"].erase(3); },
       "a branch takes 1 values, got 0"},
      {[](SmallArchive& a) { find_node(a, "set_grad")["inputs"][0]["arg"] = number_field(0); },
       "expected true or false as argument 0"},
      {[](SmallArchive& a) { find_node(a, "set_grad")["inputs"].erase(2); },
       "the region takes 1 values, got 0"},
      {[](SmallArchive& a) { a.graph()["sym_int_values"].erase("mul"); },
       "the archive does not say what the number mul is"},
      {[](SmallArchive& a) { a.graph()["sym_int_values"]["mul"] = expression("u7", 1); },
       "the inputs do not determine 'u7'"},
  });
}

TEST(HostileProgram, SignaturesThatContradictTheGraph) {
  expect_program_refused<FileError>({
      {[](SmallArchive& a) { a.signature()["input_specs"].erase(0); },
       "the graph has 5 inputs, and the signature 4"},
      {[](SmallArchive& a) { a.signature()["output_specs"].erase(0); },
       "the graph has 5 outputs, and the signature 4"},
      {[](SmallArchive& a) { a.tensors().erase("x"); },
       "the archive does not say what the tensor x is"},
      {[](SmallArchive& a) { a.set_in_tree(tuple_tree({}), dict_tree({}, {})); },
       "in_spec has 0 leaves, the signature 1"},
      {[](SmallArchive& a) { a.set_in_tree(leaf_tree(), leaf_tree()); },
       "expected arguments and keyword arguments as in_spec"},
      {[](SmallArchive& a) { a.set_out_tree(leaf_tree()); },
       "out_spec has 1 leaves, the signature 4"},
      {[](SmallArchive& a) {
         a.signature()["output_specs"][0]["buffer_mutation"]["buffer_name"] = "";
       },
       "there is no  that could be changed"},
      {[](SmallArchive& a) { a.weights["config"].erase("count"); }, "it has no tensor for count"},
      {[](SmallArchive& a) { a.weights["config"].clear(); }, "it has no tensor for "},
      {[](SmallArchive& a) { a.files.erase("data/weights/weight_0"); },
       "has no data/weights/weight_0"},
  });
}

// What is changed has no name, as an input that is no tensor has none.
TEST(HostileProgram, ChangesOfNothing) {
  SmallArchive archive = SmallArchive::rich();
  archive.graph()["inputs"].push_back(number_field(3));
  archive.signature()["input_specs"].push_back({{"user_input", {{"arg", number_field(3)}}}});
  archive.set_in_tree(tuple_tree({leaf_tree(), leaf_tree()}), dict_tree({}, {}));
  EXPECT_EQ(load(archive).parts().inputs.size(), 2U);
  archive.signature()["output_specs"][0]["buffer_mutation"]["buffer_name"] = "";
  EXPECT_ERROR(load(archive), FileError, "there is no  that could be changed");
}

TEST(HostileProgram, UnknownNumbersAsInputs) {
  for (const char* kind : {"as_sym_int", "as_sym_bool", "as_sym_float"}) {
    SmallArchive archive = SmallArchive::linear();
    const Json given = {{kind, {{"as_name", "n"}}}};
    archive.graph()["inputs"].push_back(given);
    archive.signature()["input_specs"].push_back({{"user_input", {{"arg", given}}}});
    archive.set_in_tree(tuple_tree({leaf_tree(), leaf_tree()}), dict_tree({}, {}));
    EXPECT_ERROR(load(archive), FileError, "the archive does not say what the number n is");
  }
}

TEST(HostileProgram, AbsurdSizes) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const char* tensor : {"x", "relu"}) {
    for (const int64_t size : {kHuge, int64_t{-5}}) {
      SmallArchive archive = SmallArchive::linear();
      archive.tensors()[tensor]["sizes"] = {number_field(size), number_field(4)};
      EXPECT_ERROR(load(archive), GraphError, "there is no tensor of the size");
    }
  }
  SmallArchive archive = SmallArchive::linear();
  archive.tensors()["x"]["sizes"] = Json::array();
  for (int i = 0; i < 100; ++i) archive.tensors()["x"]["sizes"].push_back(symbol("s0", kHuge));
  EXPECT_ERROR(load(archive), GraphError, "there is no tensor of the size");
  // More symbols than a graph can have.
  archive.tensors()["x"]["sizes"] = Json::array();
  for (int i = 0; i < 100; ++i) {
    archive.tensors()["x"]["sizes"].push_back(symbol(fmt::format("s{}", i), 3));
  }
  EXPECT_ERROR(load(archive), GraphError, "the model has more than 62 sizes");
}

// An operator asks for more memory than there is: the run fails, and nothing else.
TEST(HostileProgram, AbsurdAllocations) {
  SmallArchive archive = SmallArchive::linear();
  archive.nodes()[1] = node("torch.ops.aten.repeat.default",
                            {{"self", tensor_name("linear")},
                             {"repeats", {{"as_ints", {int64_t{1} << 40, int64_t{1} << 12}}}}},
                            {tensor_name("relu")});
  const Graph graph = load(archive);
  EXPECT_ERROR(GraphProgram(graph).run({at::ones({3, 4})}), GraphError, "relu");
}

TEST(HostileProgram, OddNames) {
  SmallArchive archive = SmallArchive::linear();
  std::string text = archive.model.dump();
  const std::string odd = R"(a b\u0001\"\n%\u00e9)";
  for (const std::string from : {"\"linear\"", "\"relu\""}) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1)) {
      text.replace(at, from.size(), "\"" + odd + from.substr(1));
    }
  }
  archive.model = Json::parse(text);
  const Graph graph = load(archive);
  EXPECT_EQ(graph.parts().nodes[0].name, "a_b______linear");
  EXPECT_EQ(GraphProgram(graph).run({at::ones({3, 4})}).toTensor().size(0), 3);
}

TEST(HostileProgram, TextsThatAreNoUtf8) {
  std::vector<ZipMember> members = SmallArchive::linear().members();
  for (ZipMember& member : members) {
    if (!member.name.ends_with("model.json")) continue;
    member.bytes.replace(member.bytes.find("relu"), 4, "\xff\xfe\xc0\x80");
  }
  const TempFile file(zip_bytes(members));
  EXPECT_ERROR(load_exported(file.path()), FileError,
               file.path() + ": models/model.json is not JSON: ");
}

TEST(HostileProgram, TwoNamesForOneState) {
  // The same parameter twice in the signature: one state.
  SmallArchive archive = SmallArchive::linear();
  const Json spec = archive.signature()["input_specs"][0];
  archive.signature()["input_specs"].insert(archive.signature()["input_specs"].begin(), spec);
  const Json input = archive.graph()["inputs"][0];
  archive.graph()["inputs"].insert(archive.graph()["inputs"].begin(), input);
  const Graph graph = load(archive);
  EXPECT_EQ(graph.parts().states.size(), 2U);
}

TEST(HostileProgram, ManyInputs) {
  constexpr std::size_t kInputs = 30000;
  SmallArchive archive = SmallArchive::linear();
  std::vector<Json> leaves(kInputs + 1, leaf_tree());
  for (std::size_t i = 0; i < kInputs; ++i) {
    archive.add_input(fmt::format("x{}", i), archive.tensors()["x"]);
  }
  archive.set_in_tree(tuple_tree(leaves), dict_tree({}, {}));
  EXPECT_EQ(load(archive).parts().inputs.size(), kInputs + 1);
}

// The size of the example is looked for: s7 stands nowhere alone.
TEST(HostileProgram, LongExpressions) {
  SmallArchive archive = SmallArchive::linear();
  std::string text = "s7";
  for (int i = 0; i < 50000; ++i) text += " + s7 - s7";
  archive.tensors()["x"]["sizes"][0] = expression(text + " + s7 // 2", 100000);
  archive.tensors()["x"]["sizes"][1] = expression(text + " - s7", 100000);
  EXPECT_EQ(load(archive).parts().sizes[0].example, 66667);
}

}  // namespace
}  // namespace stagecraft
