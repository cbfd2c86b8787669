#include "stagecraft/exported/read_graph.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include "stagecraft/base/error.h"

namespace stagecraft::exported {

namespace {

/// The largest depth of graphs inside graphs. It limits the recursion for hostile files.
constexpr int kMaxGraphDepth = 32;

RawGraph graph_of(const JsonField& field, int depth);

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

/// Reads a name, or a number that has the place of a name.
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

/// The innermost module of "key,path,class;key,path,class": a path in the model.
std::string innermost(std::string_view stack, std::size_t& modules) {
  std::string result;
  while (!stack.empty()) {
    const std::size_t end = stack.find(';');
    const std::string_view entry = stack.substr(0, end);
    stack = end == std::string_view::npos ? std::string_view() : stack.substr(end + 1);
    // The path is between the first two commas. It has no commas, but the name of a class may.
    const std::size_t first = entry.find(',');
    const std::size_t second = first == std::string_view::npos ? first : entry.find(',', first + 1);
    if (second == std::string_view::npos) continue;
    if (entry.starts_with("_empty_nn_module_stack")) continue;
    result = entry.substr(first + 1, second - first - 1);
    ++modules;
  }
  return result;
}

// The custom autograd function X through which a node was traced; empty if there is none. Its stack
// trace then has a line that calls `X.apply(...)`, followed by a frame of a forward, and more
// forwards than modules.
std::string own_function_of(std::string_view trace, std::size_t modules) {
  std::size_t forwards = 0;
  std::string called;  // X, if the line before this frame calls it
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

}  // namespace

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

}  // namespace stagecraft::exported
