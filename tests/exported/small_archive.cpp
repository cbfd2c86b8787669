#include "tests/exported/small_archive.h"

#include <cstddef>

#include <fmt/format.h>

#include <ATen/core/Dict.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "stagecraft/exported/exported_archive.h"

namespace stagecraft {

namespace {

using Json = nlohmann::json;

Json number(int64_t value) {
  return {{"as_int", value}};
}

Json as_bool(bool value) {
  return {{"as_bool", value}};
}

Json size_of(const Json& size) {
  return size.is_number() ? number(size.get<int64_t>()) : size;
}

Json empty_graph() {
  return {{"inputs", Json::array()},          {"outputs", Json::array()},
          {"nodes", Json::array()},           {"tensor_values", Json::object()},
          {"sym_int_values", Json::object()}, {"sym_bool_values", Json::object()},
          {"is_single_tensor_return", false}, {"custom_obj_values", Json::object()}};
}

SmallArchive empty_archive() {
  SmallArchive archive;
  archive.model = {
      {"graph_module",
       {{"graph", empty_graph()},
        {"signature", {{"input_specs", Json::array()}, {"output_specs", Json::array()}}},
        {"module_call_graph", Json::array({{{"fqn", ""},
                                            {"signature",
                                             {{"inputs", Json::array()},
                                              {"outputs", Json::array()},
                                              {"in_spec", ""},
                                              {"out_spec", ""},
                                              {"forward_arg_names", Json::array({"x"})}}}}})}}},
      {"opset_version", {{"aten", 10}}},
      {"range_constraints", {{"s0", {{"min_val", 2}, {"max_val", nullptr}}}}},
      {"schema_version", {{"major", 8}, {"minor", 14}}},
      {"guards_code", Json::array()},
      {"torch_version", "2.13.0"}};
  archive.weights = {{"config", Json::object()}};
  archive.files = {{"archive_format", "pt2"},
                   {"archive_version", "0"},
                   {"byteorder", "little"},
                   {"data/constants/model_constants_config.json", R"({"config": {}})"}};
  archive.set_in_tree(tuple_tree({leaf_tree()}), dict_tree({}, {}));
  archive.set_out_tree(leaf_tree());
  return archive;
}

/// A graph of one node over x, which returns y.
Json branch(const std::string& target, const Json& meta) {
  Json graph = empty_graph();
  graph["inputs"].push_back(tensor_name("x"));
  graph["outputs"].push_back(tensor_name("y"));
  graph["nodes"].push_back(node(target, {{"self", tensor_name("x")}}, {tensor_name("y")}));
  graph["tensor_values"] = {{"x", meta}, {"y", meta}};
  return {{"as_graph", {{"name", "branch"}, {"graph", graph}}}};
}

}  // namespace

Json tensor_name(const std::string& name) {
  return {{"as_tensor", {{"name", name}}}};
}

Json expression(const std::string& text, int64_t hint) {
  return {{"as_expr", {{"expr_str", text}, {"hint", number(hint)}}}};
}

Json symbol(const std::string& name, int64_t hint) {
  return expression(fmt::format("Symbol('{}', positive=True, integer=True)", name), hint);
}

Json tensor_meta(const std::vector<Json>& sizes, bool requires_grad) {
  Json all = Json::array();
  std::vector<Json> strides(sizes.size());
  int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = number(stride);
    if (sizes[i].is_number()) stride *= sizes[i].get<int64_t>();
  }
  for (const Json& size : sizes) all.push_back(size_of(size));
  return {{"dtype", 7},
          {"sizes", all},
          {"requires_grad", requires_grad},
          {"device", {{"type", "cpu"}, {"index", nullptr}}},
          {"strides", strides},
          {"storage_offset", number(0)},
          {"layout", 7}};
}

Json node(const std::string& target, const std::vector<std::pair<std::string, Json>>& inputs,
          const std::vector<Json>& outputs) {
  Json given = Json::array();
  for (const auto& [name, argument] : inputs) {
    given.push_back({{"name", name}, {"arg", argument}, {"kind", 1}});
  }
  std::string name = "node";
  if (!outputs.empty() && outputs[0].contains("as_tensor")) name = outputs[0]["as_tensor"]["name"];
  return {{"target", target},
          {"inputs", given},
          {"outputs", outputs},
          {"metadata", {{"nn_module_stack", "L__self__,,Model;L__self__fc,fc,Linear"}}},
          {"name", name}};
}

Json leaf_tree() {
  return {{"type", nullptr}, {"context", nullptr}, {"children_spec", Json::array()}};
}

Json tuple_tree(const std::vector<Json>& children) {
  return {{"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", children}};
}

Json dict_tree(const std::vector<std::string>& keys, const std::vector<Json>& children) {
  return {{"type", "builtins.dict"}, {"context", Json(keys).dump()}, {"children_spec", children}};
}

void SmallArchive::set_in_tree(const Json& args, const Json& kwargs) {
  model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] =
      Json::array({1, tuple_tree({args, kwargs})}).dump();
}

void SmallArchive::set_out_tree(const Json& tree) {
  model["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] =
      Json::array({1, tree}).dump();
}

void SmallArchive::add_parameter(const std::string& name, const std::vector<int64_t>& sizes) {
  const Json meta = tensor_meta({sizes.begin(), sizes.end()}, true);
  graph()["inputs"].push_back(tensor_name("p_" + name));
  tensors()["p_" + name] = meta;
  signature()["input_specs"].push_back(
      {{"parameter", {{"arg", {{"name", "p_" + name}}}, {"parameter_name", name}}}});
  const std::string piece = fmt::format("weight_{}", weights["config"].size());
  weights["config"][name] = {
      {"path_name", piece}, {"is_param", true}, {"use_pickle", false}, {"tensor_meta", meta}};
  std::string bytes;
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  for (int64_t i = 0; i < count; ++i) bytes += std::string("\x00\x00\x80\x3f", 4);
  files["data/weights/" + piece] = bytes;
}

void SmallArchive::add_input(const std::string& name, const Json& meta) {
  graph()["inputs"].push_back(tensor_name(name));
  tensors()[name] = meta;
  signature()["input_specs"].push_back({{"user_input", {{"arg", tensor_name(name)}}}});
}

void SmallArchive::add_node(const std::string& target,
                            const std::vector<std::pair<std::string, Json>>& inputs,
                            const std::string& name, const Json& meta) {
  nodes().push_back(node(target, inputs, {tensor_name(name)}));
  tensors()[name] = meta;
}

void SmallArchive::add_output(const std::string& name) {
  graph()["outputs"].push_back(tensor_name(name));
  signature()["output_specs"].push_back({{"user_output", {{"arg", tensor_name(name)}}}});
}

void SmallArchive::set_example(const Arguments& arguments) {
  c10::impl::GenericDict kwargs(c10::StringType::get(), c10::AnyType::get());
  const c10::IValue both = c10::ivalue::Tuple::create(
      {c10::ivalue::Tuple::create(std::vector<c10::IValue>(arguments.args)), kwargs});
  const std::vector<char> pickled = torch::jit::pickle_save(both);
  files["data/sample_inputs/model.pt"] = {pickled.begin(), pickled.end()};
}

SmallArchive SmallArchive::linear() {
  SmallArchive archive = empty_archive();
  const Json rows = tensor_meta({symbol("s0", 3), 4});
  archive.add_parameter("fc.weight", {4, 4});
  archive.add_parameter("fc.bias", {4});
  archive.add_input("x", rows);
  archive.add_node("torch.ops.aten.linear.default",
                   {{"input", tensor_name("x")},
                    {"weight", tensor_name("p_fc.weight")},
                    {"bias", tensor_name("p_fc.bias")}},
                   "linear", rows);
  archive.add_node("torch.ops.aten.relu.default", {{"self", tensor_name("linear")}}, "relu", rows);
  archive.add_node("torch.ops.aten.add.Tensor",
                   {{"self", tensor_name("relu")}, {"other", tensor_name("x")}}, "add", rows);
  archive.add_output("add");
  archive.set_example({{at::ones({3, 4})}, {}});
  return archive;
}

SmallArchive SmallArchive::rich() {
  SmallArchive archive = linear();
  const Json rows = tensor_meta({symbol("s0", 3), 4});
  // The same memory under another name.
  archive.graph()["inputs"].insert(archive.graph()["inputs"].begin(), tensor_name("p_tied"));
  archive.signature()["input_specs"].insert(
      archive.signature()["input_specs"].begin(),
      Json{{"parameter", {{"arg", {{"name", "p_tied"}}}, {"parameter_name", "tied.weight"}}}});
  archive.tensors()["p_tied"] = archive.tensors()["p_fc.weight"];
  archive.weights["config"]["tied.weight"] = archive.weights["config"]["fc.weight"];
  // A buffer that is added to.
  archive.add_parameter("count", {1});
  archive.graph()["inputs"].erase(archive.graph()["inputs"].size() - 1);
  archive.graph()["inputs"].insert(archive.graph()["inputs"].begin(), tensor_name("b_count"));
  archive.tensors()["b_count"] = tensor_meta({1});
  archive.tensors().erase("p_count");
  Json& specs = archive.signature()["input_specs"];
  specs.erase(specs.size() - 1);
  specs.insert(
      specs.begin(),
      Json{{"buffer",
            {{"arg", {{"name", "b_count"}}}, {"buffer_name", "count"}, {"persistent", true}}}});
  archive.add_node("torch.ops.aten.add.Tensor",
                   {{"self", tensor_name("b_count")}, {"other", number(1)}}, "add_1",
                   tensor_meta({1}));
  // Lists of tensors.
  archive.nodes().push_back(
      node("torch.ops.aten.chunk.default",
           {{"self", tensor_name("add")}, {"chunks", number(2)}, {"dim", number(1)}},
           {{{"as_tensors", Json::array({{{"name", "left"}}, {{"name", "right"}}})}}}));
  const Json half = tensor_meta({symbol("s0", 3), 2});
  archive.tensors()["left"] = half;
  archive.tensors()["right"] = half;
  const Json both = Json::array({{{"name", "left"}}, {{"name", "right"}}, {{"name", "left"}}});
  archive.add_node("torch.ops.aten.cat.default",
                   {{"tensors", {{"as_tensors", both}}}, {"dim", number(1)}}, "cat",
                   tensor_meta({symbol("s0", 3), 6}));
  // Sizes that follow from others.
  const std::string twice = "Mul(Integer(2), Symbol('s0', positive=True, integer=True))";
  archive.graph()["sym_int_values"]["mul"] = expression(twice, 6);
  archive.nodes().push_back(node("_operator.mul",
                                 {{"a", {{"as_sym_int", number(2)}}}, {"b", number(2)}},
                                 {{{"as_sym_int", {{"as_name", "mul"}}}}}));
  const Json shape = Json::array({{{"as_name", "mul"}}, number(3)});
  archive.add_node("torch.ops.aten.view.default",
                   {{"self", tensor_name("cat")}, {"size", {{"as_sym_ints", shape}}}}, "view",
                   tensor_meta({expression(twice, 6), 3}));
  const std::string part =
      "FloorDiv(Add(Symbol('s0', positive=True, integer=True), Integer(1)), Integer(2))";
  archive.add_node("torch.ops.aten.slice.Tensor",
                   {{"self", tensor_name("add")},
                    {"dim", number(0)},
                    {"start", number(0)},
                    {"end", {{"as_sym_int", {{"as_name", "part"}}}}}},
                   "slice_1", tensor_meta({expression(part, 2), 4}));
  archive.graph()["sym_int_values"]["part"] = expression(part, 2);
  // Regions.
  archive.nodes().push_back(node("torch.ops.higher_order.wrap_with_set_grad_enabled",
                                 {{"", as_bool(false)},
                                  {"", branch("torch.ops.aten.exp.default", rows)},
                                  {"", tensor_name("add")}},
                                 {tensor_name("exp")}));
  archive.tensors()["exp"] = rows;
  Json truth = tensor_meta({});
  truth["dtype"] = 12;
  archive.add_node("torch.ops.aten.sum.default", {{"self", tensor_name("exp")}}, "sum",
                   tensor_meta({}));
  archive.add_node("torch.ops.aten.gt.Scalar", {{"self", tensor_name("sum")}, {"other", number(0)}},
                   "gt", truth);
  archive.nodes().push_back(node("torch.ops.higher_order.cond",
                                 {{"pred", tensor_name("gt")},
                                  {"true_graph", branch("torch.ops.aten.sin.default", rows)},
                                  {"false_graph", branch("torch.ops.aten.cos.default", rows)},
                                  {"operands", {{"as_tensors", Json::array({{{"name", "exp"}}})}}}},
                                 {{{"as_tensors", Json::array({{{"name", "chosen"}}})}}}));
  archive.tensors()["chosen"] = rows;
  for (const char* name : {"view", "slice_1", "chosen"}) archive.add_output(name);
  archive.graph()["outputs"].insert(archive.graph()["outputs"].begin(), tensor_name("add_1"));
  Json& made = archive.signature()["output_specs"];
  made.insert(made.begin(),
              Json{{"buffer_mutation", {{"arg", {{"name", "add_1"}}}, {"buffer_name", "count"}}}});
  archive.set_out_tree(
      tuple_tree({leaf_tree(), dict_tree({"a", "b"}, {leaf_tree(), leaf_tree()}), leaf_tree()}));
  archive.model["guards_code"] = Json::array({"L['x'].size()[0] <= 100", "f(L['x'])"});
  return archive;
}

std::vector<ZipMember> SmallArchive::members() const {
  const auto replace = Json::error_handler_t::replace;
  std::vector<ZipMember> result;
  for (const auto& [name, bytes] : files) result.push_back({"small/" + name, bytes});
  result.push_back({"small/models/model.json", model.dump(-1, ' ', false, replace)});
  result.push_back(
      {"small/data/weights/model_weights_config.json", weights.dump(-1, ' ', false, replace)});
  return result;
}

Graph load(const SmallArchive& archive) {
  const TempFile file(archive.bytes());
  return load_exported(file.path());
}

}  // namespace stagecraft
