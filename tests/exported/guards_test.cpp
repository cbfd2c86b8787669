#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/run/program.h"
#include "tests/exported/small_archive.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;

/// relu(x) for x of [s0, s1] in {"pair": (x, y)}, y of [s1], and a number n.
SmallArchive nested_guards(const std::vector<std::string>& guards) {
  SmallArchive archive = SmallArchive::linear();
  archive.graph()["inputs"] = Json::array();
  archive.graph()["outputs"] = Json::array();
  archive.signature() = {{"input_specs", Json::array()}, {"output_specs", Json::array()}};
  archive.nodes() = Json::array();
  const Json meta = tensor_meta({symbol("s0", 4), symbol("s1", 6)});
  archive.add_input("x", meta);
  archive.add_input("y", tensor_meta({symbol("s1", 6)}));
  const Json number = {{"as_sym_int", {{"as_name", "n"}}}};
  archive.graph()["inputs"].push_back(number);
  archive.signature()["input_specs"].push_back({{"user_input", {{"arg", number}}}});
  archive.graph()["sym_int_values"]["n"] = symbol("s2", 3);
  archive.add_node("torch.ops.aten.relu.default", {{"self", tensor_name("x")}}, "relu", meta);
  archive.add_output("relu");
  archive.set_in_tree(
      tuple_tree({dict_tree({"pair"}, {tuple_tree({leaf_tree(), leaf_tree()})}), leaf_tree()}),
      dict_tree({}, {}));
  archive.model["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = {"tree",
                                                                                             "n"};
  archive.model["guards_code"] = guards;
  return archive;
}

c10::IValue run(const SmallArchive& archive, int64_t rows, int64_t columns, int64_t n = 3) {
  c10::impl::GenericDict tree(c10::StringType::get(), c10::AnyType::get());
  tree.insert("pair", c10::ivalue::Tuple::create({at::ones({rows, columns}), at::ones({columns})}));
  return GraphProgram(load(archive)).run({tree, n});
}

TEST(Guards, OfATensorsSizes) {
  SmallArchive archive = SmallArchive::linear();
  archive.model["guards_code"] = {"L['x'].size()[0] % 2 == 0"};
  const GraphProgram program(load(archive));
  EXPECT_EQ(program.run({at::ones({6, 4})}).toTensor().size(0), 6);
  EXPECT_ERROR(program.run({at::ones({5, 4})}), MetadataError, "x.size(0) % 2 == 0");
  EXPECT_ERROR(program.run({at::ones({1, 4})}), MetadataError, "1");
}

TEST(Guards, OfNestedInputsAndNumbers) {
  const SmallArchive archive = nested_guards(
      {"L['tree']['pair'][0].size()[1] % 2 == 0",
       "L['tree']['pair'][0].size()[0] <= L['tree']['pair'][1].size()[0]", "L['n'] > 2"});
  EXPECT_EQ(run(archive, 4, 6).toTensor().size(1), 6);
  EXPECT_EQ(run(archive, 2, 8, 9).toTensor().size(1), 8);
  EXPECT_ERROR(run(archive, 4, 7), MetadataError, "tree['pair'][0].size(1) % 2 == 0");
  EXPECT_ERROR(run(archive, 9, 6), MetadataError,
               "tree['pair'][0].size(0) <= tree['pair'][1].size(0)");
  EXPECT_ERROR(run(archive, 4, 6, 2), MetadataError, "n > 2");
}

TEST(Guards, ThatCannotBeReadBecomeWarnings) {
  const std::vector<std::string> guards = {"L['z'].size()[0] == 3",
                                           "L['x'].size()[0] == 3",
                                           "L['tree'].size()[0] == 3",
                                           "L['tree']['pair'].size()[0] == 3",
                                           "L['tree']['other'][0].size()[0] == 3",
                                           "L['tree']['pair'][2].size()[0] == 3",
                                           "L['tree']['pair'][-1].size()[0] == 3",
                                           "L['tree']['pair'][0].size()[2] == 3",
                                           "L['tree']['pair'][0].size()[-1] == 3",
                                           "L['tree']['pair'][0].stride()[0] == 3",
                                           "L['tree']['pair'][0] is None",
                                           "L['n'",
                                           "L['",
                                           "",
                                           "isinstance(L['n'], int)",
                                           "L['n'] == 1.5",
                                           "\xc3\xa4 == 1",
                                           std::string(100000, '(')};
  const TempFile file(nested_guards(guards).bytes());
  const ExportedArchive archive(file.path());
  const std::vector<std::string> warnings = archive.warnings();
  ASSERT_EQ(warnings.size(), guards.size());
  EXPECT_EQ(warnings[0], "not checked: z.size(0) == 3");
  EXPECT_EQ(warnings[9], "not checked: tree['pair'][0].stride()[0] == 3");
  EXPECT_EQ(run(nested_guards(guards), 4, 6).toTensor().size(0), 4);
}

TEST(Guards, WithoutNamesOfArgumentsAreNotChecked) {
  SmallArchive archive = SmallArchive::linear();
  archive.model["guards_code"] = {"L['x'].size()[0] == 77"};
  archive.model["graph_module"]["module_call_graph"][0]["signature"].erase("forward_arg_names");
  EXPECT_TRUE(load(archive).parts().guards.empty());
}

TEST(Guards, LongOnesTakeNoTime) {
  std::string guard;
  for (int i = 0; i < 300000; ++i) guard += "L['";
  for (int i = 0; i < 300000; ++i) guard += ".size()[";
  const TempFile file(nested_guards({guard, guard}).bytes());
  EXPECT_EQ(ExportedArchive(file.path()).warnings().size(), 2U);
}

}  // namespace
}  // namespace stagecraft
