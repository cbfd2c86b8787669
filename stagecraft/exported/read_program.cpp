#include "stagecraft/exported/read_program.h"

#include <array>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/json_stream.h"

namespace stagecraft::exported {

namespace {

using Json = nlohmann::json;

constexpr int64_t kSchemaMajor = 8;
/// Graphs inside graphs.
constexpr int kMaxGraphDepth = 32;

// Enumerations of the format, by their numbers there.

c10::ScalarType dtype_of(const JsonField& field) {
  using enum c10::ScalarType;
  const int64_t number = field.integer();
  constexpr std::array<c10::ScalarType, 13> kFirst = {
      Byte,   Char,        Short,        Int,           Long, Half,    Float,
      Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, BFloat16};
  constexpr std::array<c10::ScalarType, 8> kLater = {
      UInt16,          Float8_e4m3fn,  Float8_e5m2, Float8_e4m3fnuz,
      Float8_e5m2fnuz, Float8_e8m0fnu, UInt32,      UInt64};
  constexpr int64_t kLaterBegin = 28;
  if (number >= 1 && number <= 13) return kFirst[static_cast<std::size_t>(number - 1)];
  if (number >= kLaterBegin && number < kLaterBegin + 8) {
    return kLater[static_cast<std::size_t>(number - kLaterBegin)];
  }
  field.fail(fmt::format("there is no dtype {}", number));
}

c10::Layout layout_of(const JsonField& field) {
  constexpr std::array<c10::Layout, 7> kLayouts = {c10::Layout::Sparse,    c10::Layout::SparseCsr,
                                                   c10::Layout::SparseCsc, c10::Layout::SparseBsr,
                                                   c10::Layout::SparseBsc, c10::Layout::Mkldnn,
                                                   c10::Layout::Strided};
  const int64_t number = field.integer();
  if (number < 1 || number > 7) field.fail(fmt::format("there is no layout {}", number));
  return kLayouts[static_cast<std::size_t>(number - 1)];
}

c10::MemoryFormat memory_format_of(const JsonField& field) {
  constexpr std::array<c10::MemoryFormat, 4> kFormats = {
      c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
      c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};
  const int64_t number = field.integer();
  if (number < 1 || number > 4) field.fail(fmt::format("there is no memory format {}", number));
  return kFormats[static_cast<std::size_t>(number - 1)];
}

c10::Device device_of(const JsonField& field) {
  const std::string type = field.at("type").text();
  try {
    c10::Device device(type);
    if (field.has("index")) {
      const int64_t index = field.at("index").integer();
      if (index < 0 || index > 127) field.fail(fmt::format("there is no device {}", index));
      device = c10::Device(device.type(), static_cast<c10::DeviceIndex>(index));
    }
    return device;
  } catch (const FileError&) {
    throw;
  } catch (const std::exception&) {
    field.fail(fmt::format("there is no device '{}'", type));
  }
}

RawSymbol symbol_of(const JsonField& field) {
  RawSymbol symbol;
  const std::string kind = field.only_key();
  const JsonField content = field.at(kind);
  if (kind == "as_int") {
    symbol.number = content.integer();
  } else if (kind == "as_bool") {
    symbol.number = content.boolean() ? 1 : 0;
  } else if (kind == "as_float") {
    symbol.expression = fmt::format("{}", content.number());
  } else if (kind == "as_expr") {
    symbol.expression = content.at("expr_str").text();
    if (content.has("hint")) {
      const JsonField hint = content.at("hint");
      const std::string of = hint.only_key();
      if (of == "as_int") symbol.hint = hint.at(of).integer();
      if (of == "as_bool") symbol.hint = hint.at(of).boolean() ? 1 : 0;
    }
  } else {
    field.fail(fmt::format("expected a number or an expression, got '{}'", kind));
  }
  return symbol;
}

RawTensor tensor_of(const JsonField& field) {
  RawTensor tensor;
  tensor.dtype = dtype_of(field.at("dtype"));
  field.at("sizes").for_each(
      [&](const JsonField& size) { tensor.sizes.push_back(symbol_of(size)); });
  field.at("strides").for_each(
      [&](const JsonField& stride) { tensor.strides.push_back(symbol_of(stride)); });
  tensor.offset = symbol_of(field.at("storage_offset"));
  tensor.requires_grad = field.at("requires_grad").boolean();
  tensor.device = device_of(field.at("device"));
  tensor.is_strided = layout_of(field.at("layout")) == c10::Layout::Strided;
  return tensor;
}

RawGraph graph_of(const JsonField& field, int depth);

/// A name, or a number in its place.
RawArgument named_or(const JsonField& field, RawName::Kind kind) {
  const std::string key = field.only_key();
  const JsonField content = field.at(key);
  if (key == "as_name") return {RawName{kind, content.text()}};
  if (key == "as_int") return {c10::IValue(content.integer())};
  if (key == "as_bool") return {c10::IValue(content.boolean())};
  if (key == "as_float") return {c10::IValue(content.number())};
  field.fail(fmt::format("expected a name or a number, got '{}'", key));
}

template <typename Fn>
RawArgument list_of(const JsonField& field, Fn&& element) {
  RawArgument::List list;
  field.for_each([&](const JsonField& each) { list.push_back(element(each)); });
  return {std::move(list)};
}

RawArgument argument_of(const JsonField& field, int depth) {
  using Kind = RawName::Kind;
  const std::string key = field.only_key();
  const JsonField content = field.at(key);
  auto tensor = [](const JsonField& each) {
    return RawArgument{RawName{Kind::kTensor, each.at("name").text()}};
  };
  auto integer = [](const JsonField& each) { return RawArgument{c10::IValue(each.integer())}; };
  auto number = [](const JsonField& each) { return RawArgument{c10::IValue(each.number())}; };
  auto boolean = [](const JsonField& each) { return RawArgument{c10::IValue(each.boolean())}; };
  auto text = [](const JsonField& each) { return RawArgument{c10::IValue(each.text())}; };
  auto maybe_tensor = [&](const JsonField& each) {
    const std::string of = each.only_key();
    if (of == "as_none") return RawArgument{};
    if (of != "as_tensor") each.fail(fmt::format("expected a tensor or none, got '{}'", of));
    return tensor(each.at(of));
  };
  auto symbolic = [](Kind kind) {
    return [kind](const JsonField& each) { return named_or(each, kind); };
  };
  if (key == "as_none") return {};
  if (key == "as_tensor") return tensor(content);
  if (key == "as_tensors") return list_of(content, tensor);
  if (key == "as_optional_tensor") return maybe_tensor(content);
  if (key == "as_optional_tensors") return list_of(content, maybe_tensor);
  if (key == "as_nested_tensors") {
    return list_of(content, [&](const JsonField& each) { return list_of(each, tensor); });
  }
  if (key == "as_int") return integer(content);
  if (key == "as_ints") return list_of(content, integer);
  if (key == "as_int_lists") {
    return list_of(content, [&](const JsonField& each) { return list_of(each, integer); });
  }
  if (key == "as_float") return number(content);
  if (key == "as_floats") return list_of(content, number);
  if (key == "as_float_lists") {
    return list_of(content, [&](const JsonField& each) { return list_of(each, number); });
  }
  if (key == "as_bool") return boolean(content);
  if (key == "as_bools") return list_of(content, boolean);
  if (key == "as_string" || key == "as_operator") return text(content);
  if (key == "as_strings") return list_of(content, text);
  if (key == "as_sym_int") return named_or(content, Kind::kSymInt);
  if (key == "as_sym_ints") return list_of(content, symbolic(Kind::kSymInt));
  if (key == "as_sym_bool") return named_or(content, Kind::kSymBool);
  if (key == "as_sym_bools") return list_of(content, symbolic(Kind::kSymBool));
  if (key == "as_sym_float") return named_or(content, Kind::kSymFloat);
  if (key == "as_sym_floats") return list_of(content, symbolic(Kind::kSymFloat));
  if (key == "as_scalar_type") return {c10::IValue(static_cast<int64_t>(dtype_of(content)))};
  if (key == "as_layout") return {c10::IValue(static_cast<int64_t>(layout_of(content)))};
  if (key == "as_memory_format") {
    return {c10::IValue(static_cast<int64_t>(memory_format_of(content)))};
  }
  if (key == "as_device") return {c10::IValue(device_of(content))};
  if (key == "as_complex") {
    return {c10::IValue(
        c10::complex<double>(content.at("real").number(), content.at("imag").number()))};
  }
  if (key == "as_graph") {
    return {std::make_shared<const RawGraph>(graph_of(content.at("graph"), depth + 1))};
  }
  if (key == "as_custom_obj") return {RawName{Kind::kObject, content.at("class_fqn").text()}};
  field.fail(fmt::format("there is no kind of argument '{}'", key));
}

/// The innermost module of "key,path,class;key,path,class": a path in the model.
std::string innermost(std::string_view stack, std::size_t& modules) {
  std::string result;
  while (!stack.empty()) {
    const std::size_t end = stack.find(';');
    const std::string_view entry = stack.substr(0, end);
    stack = end == std::string_view::npos ? std::string_view() : stack.substr(end + 1);
    // A class may have commas in its name, a path between the first two has none.
    const std::size_t first = entry.find(',');
    const std::size_t second = first == std::string_view::npos ? first : entry.find(',', first + 1);
    if (second == std::string_view::npos) continue;
    if (entry.starts_with("_empty_nn_module_stack")) continue;
    result = entry.substr(first + 1, second - first - 1);
    ++modules;
  }
  return result;
}

// What leads to a node that was traced through a custom autograd function: a line that calls
// `X.apply(...)`, then a forward that is no module's.
std::string own_function_of(std::string_view trace, std::size_t modules) {
  std::size_t forwards = 0;
  std::string called;  // X, where the line before this frame has it
  std::string found;
  while (!trace.empty()) {
    const std::size_t end = trace.find('\n');
    const std::string_view line = trace.substr(0, end);
    trace = end == std::string_view::npos ? std::string_view() : trace.substr(end + 1);
    if (line.find("File \"") != std::string_view::npos) {
      const bool is_forward = line.ends_with(", in forward");
      if (is_forward) ++forwards;
      if (is_forward && !called.empty()) found = called;
      called.clear();
      continue;
    }
    const std::size_t call = line.find(".apply(");
    if (call == std::string_view::npos) continue;
    const std::size_t begin = line.find_last_of(" =(,", call);
    called = line.substr(begin == std::string_view::npos ? 0 : begin + 1,
                         begin == std::string_view::npos ? call : call - begin - 1);
  }
  return forwards > modules ? found : std::string();
}

RawNode node_of(const JsonField& field, int depth) {
  RawNode node;
  node.target = field.at("target").text();
  if (field.has("name")) node.name = field.at("name").text();
  field.at("inputs").for_each([&](const JsonField& input) {
    node.inputs.emplace_back(input.at("name").text(), argument_of(input.at("arg"), depth));
  });
  field.at("outputs").for_each(
      [&](const JsonField& output) { node.outputs.push_back(argument_of(output, depth)); });
  const JsonField metadata = field.at("metadata");
  std::size_t modules = 0;
  if (metadata.has("nn_module_stack")) {
    node.module = innermost(metadata.at("nn_module_stack").text(), modules);
  }
  if (metadata.has("stack_trace")) {
    node.own_function = own_function_of(metadata.at("stack_trace").text(), modules);
  }
  return node;
}

/// All of a graph but nodes and tensors.
void read_graph_rest(const JsonField& field, RawGraph& graph, int depth) {
  field.at("inputs").for_each(
      [&](const JsonField& each) { graph.inputs.push_back(argument_of(each, depth)); });
  field.at("outputs").for_each(
      [&](const JsonField& each) { graph.outputs.push_back(argument_of(each, depth)); });
  for (const char* key : {"sym_int_values", "sym_bool_values", "sym_float_values"}) {
    if (!field.has(key)) continue;
    field.at(key).for_each_member([&](const std::string& name, const JsonField& symbol) {
      graph.symbols.emplace(name, symbol_of(symbol));
    });
  }
}

RawGraph graph_of(const JsonField& field, int depth) {
  if (depth > kMaxGraphDepth) field.fail(fmt::format("graphs nest deeper than {}", kMaxGraphDepth));
  RawGraph graph;
  field.at("nodes").for_each(
      [&](const JsonField& each) { graph.nodes.push_back(node_of(each, depth)); });
  field.at("tensor_values").for_each_member([&](const std::string& name, const JsonField& each) {
    graph.tensors.emplace(name, tensor_of(each));
  });
  read_graph_rest(field, graph, depth);
  return graph;
}

RawInputSpec input_spec_of(const JsonField& field) {
  using Kind = RawInputSpec::Kind;
  const std::string kind = field.only_key();
  const JsonField content = field.at(kind);
  RawInputSpec spec;
  auto tensor = [&] {
    return RawArgument{RawName{RawName::Kind::kTensor, content.at("arg").at("name").text()}};
  };
  if (kind == "parameter") {
    spec = {.kind = Kind::kParameter,
            .argument = tensor(),
            .target = content.at("parameter_name").text()};
  } else if (kind == "buffer") {
    spec = {.kind = Kind::kBuffer,
            .argument = tensor(),
            .target = content.at("buffer_name").text(),
            .is_persistent = content.at("persistent").boolean()};
  } else if (kind == "tensor_constant") {
    spec = {.kind = Kind::kConstant,
            .argument = tensor(),
            .target = content.at("tensor_constant_name").text()};
  } else if (kind == "user_input") {
    spec = {.kind = Kind::kUser, .argument = argument_of(content.at("arg"), 0)};
  } else if (kind == "constant_input") {
    spec = {.kind = Kind::kFixed,
            .argument = argument_of(content.at("value"), 0),
            .target = content.at("name").text()};
  } else {
    field.fail(fmt::format("an input of the kind '{}' is not supported", kind));
  }
  return spec;
}

RawOutputSpec output_spec_of(const JsonField& field) {
  using Kind = RawOutputSpec::Kind;
  const std::string kind = field.only_key();
  const JsonField content = field.at(kind);
  auto tensor = [&] {
    return RawArgument{RawName{RawName::Kind::kTensor, content.at("arg").at("name").text()}};
  };
  RawOutputSpec spec;
  if (kind == "user_output") {
    spec = {.kind = Kind::kUser, .argument = argument_of(content.at("arg"), 0)};
  } else if (kind == "loss_output") {
    spec = {.kind = Kind::kUser, .argument = tensor()};
  } else if (kind == "buffer_mutation") {
    spec = {.kind = Kind::kStateChange,
            .argument = tensor(),
            .target = content.at("buffer_name").text()};
  } else if (kind == "parameter_mutation") {
    spec = {.kind = Kind::kStateChange,
            .argument = tensor(),
            .target = content.at("parameter_name").text()};
  } else if (kind == "user_input_mutation") {
    spec = {.kind = Kind::kInputChange,
            .argument = tensor(),
            .target = content.at("user_input_name").text()};
  } else {
    field.fail(fmt::format("an output of the kind '{}' is not supported", kind));
  }
  return spec;
}

/// Parses a program and takes nodes and tensors of its graph out of it as they come.
class Reader {
 public:
  explicit Reader(const std::string& what) : what_(what) {}

  RawProgram read(std::string_view text) {
    const Json rest = parse_json(
        text, what_,
        {{{"graph_module", "graph", "nodes"},
          [this](const std::string& /*key*/, const Json& node) { take_node(node); }},
         {{"graph_module", "graph", "tensor_values"},
          [this](const std::string& name, const Json& tensor) { take_tensor(name, tensor); }}});
    const JsonField top(rest, what_);
    const int64_t major = top.at("schema_version").at("major").integer();
    require<FileError>(major == kSchemaMajor,
                       "{}: it is written in version {} of the format, expected {}", what_, major,
                       kSchemaMajor);
    const JsonField module = top.at("graph_module");
    const JsonField graph = module.at("graph");
    // What was in them has been taken.
    graph.at("nodes").for_each([](const JsonField& /*none*/) {});
    graph.at("tensor_values").for_each_member([](const std::string&, const JsonField& /*none*/) {});
    read_graph_rest(graph, program_.graph, 0);
    read_signature(module);
    read_conditions(top);
    if (top.has("torch_version")) program_.torch_version = top.at("torch_version").text();
    return std::move(program_);
  }

 private:
  void take_node(const Json& node) {
    const std::string where =
        fmt::format("{}: graph.nodes[{}]", what_, program_.graph.nodes.size());
    program_.graph.nodes.push_back(node_of(JsonField(node, where), 0));
  }

  void take_tensor(const std::string& name, const Json& tensor) {
    const std::string where = fmt::format("{}: graph.tensor_values.{}", what_, name);
    const bool is_new =
        program_.graph.tensors.emplace(name, tensor_of(JsonField(tensor, where))).second;
    require<FileError>(is_new, "{}: it appears twice", where);
  }

  void read_signature(const JsonField& module) {
    const JsonField signature = module.at("signature");
    signature.at("input_specs").for_each([&](const JsonField& each) {
      program_.inputs.push_back(input_spec_of(each));
    });
    signature.at("output_specs").for_each([&](const JsonField& each) {
      program_.outputs.push_back(output_spec_of(each));
    });
    module.at("module_call_graph").for_each([&](const JsonField& call) {
      if (!call.at("fqn").text().empty() || !call.has("signature")) return;
      const JsonField own = call.at("signature");
      program_.in_tree = own.at("in_spec").text();
      program_.out_tree = own.at("out_spec").text();
      if (!own.has("forward_arg_names")) return;
      own.at("forward_arg_names").for_each([&](const JsonField& name) {
        program_.argument_names.push_back(name.text());
      });
    });
    if (program_.in_tree.empty()) {
      module.fail("it does not say what the model takes and returns");
    }
  }

  void read_conditions(const JsonField& top) {
    if (top.has("range_constraints")) {
      top.at("range_constraints")
          .for_each_member([&](const std::string& name, const JsonField& of) {
            RawRange& range = program_.ranges[name];
            if (of.has("min_val")) range.least = of.at("min_val").integer();
            if (of.has("max_val")) range.greatest = of.at("max_val").integer();
            if (range.least && range.greatest && *range.least > *range.greatest) {
              of.fail(fmt::format("expected a range, got {} to {}", *range.least, *range.greatest));
            }
          });
    }
    if (top.has("guards_code")) {
      top.at("guards_code").for_each([&](const JsonField& each) {
        program_.guards.push_back(each.text());
      });
    }
  }

  const std::string& what_;
  RawProgram program_;
};

}  // namespace

RawProgram read_program(std::string_view json, const std::string& what) {
  return Reader(what).read(json);
}

std::map<std::string, RawPayload> read_payloads(std::string_view json, const std::string& what) {
  const Json parsed = parse_json(json, what);
  const JsonField top(parsed, what);
  std::map<std::string, RawPayload> payloads;
  top.at("config").for_each_member([&](const std::string& name, const JsonField& field) {
    RawPayload& payload = payloads[name];
    payload.path = field.at("path_name").text();
    payload.is_pickled = field.at("use_pickle").boolean();
    if (field.has("tensor_meta")) payload.tensor = tensor_of(field.at("tensor_meta"));
  });
  return payloads;
}

}  // namespace stagecraft::exported
