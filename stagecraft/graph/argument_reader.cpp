#include "stagecraft/graph/argument_reader.h"

#include <charconv>
#include <cstdint>
#include <exception>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/graph/names.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"
#include "stagecraft/tree/tree_text.h"

namespace stagecraft {

namespace {

constexpr std::string_view kNumberCharacters = "0123456789.eE+-";

}  // namespace

ArgumentReader::Depth::Depth(ArgumentReader& reader) : reader_(reader) {
  if (++reader_.depth_ > kMaxTreeDepth) {
    reader_.in_.fail(fmt::format("nested deeper than {}", kMaxTreeDepth));
  }
}

std::string ArgumentReader::read_name(std::string_view what) {
  const std::string_view name = in_.read_all_of(kNameCharacters);
  if (name.empty()) in_.fail(fmt::format("expected {}, got {}", what, in_.describe_next()));
  return std::string(name);
}

ValueId ArgumentReader::read_known_value() {
  const TextCursor start = in_;
  const std::string name = read_name("the name of a value");
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) start.fail(fmt::format("%{} is read before it is made", name));
  return found->second;
}

ValueId ArgumentReader::make_value(std::string name, const TextCursor& start) {
  const ValueId id(parts_.values.size());
  if (!by_name_.emplace(name, id).second) start.fail(fmt::format("%{} is made twice", name));
  parts_.values.push_back({.name = std::move(name)});
  return id;
}

ValueId ArgumentReader::read_new_value() {
  const TextCursor start = in_;
  in_.expect("%");
  return make_value(read_name("the name of a value"), start);
}

c10::ScalarType ArgumentReader::read_dtype() {
  const TextCursor start = in_;
  const std::string_view name = in_.read_word();
  const auto dtype = find_dtype(name);
  if (!dtype) start.fail(fmt::format("expected a dtype, got '{}'", name));
  return *dtype;
}

void ArgumentReader::read_type(ValueId id) {
  GraphValue& value = parts_.values[id];
  skip_blanks();
  value.dtype = read_dtype();
  in_.expect("[");
  skip_blanks();
  while (!in_.accept("]")) {
    if (!value.shape.empty()) in_.expect(",");
    in_.skip_space();
    if (in_.accept("?")) {
      if (value.shape.size() >= 32) in_.fail("expected an open dimension among the first 32");
      value.open_dims |= uint32_t{1} << value.shape.size();
    }
    value.shape.push_back(parse_size_expr(in_, size_names_));
  }
  if (in_.accept("@")) {
    const TextCursor start = in_;
    // Each part is read in a statement of its own, because compilers differ in the order in which
    // they evaluate operands.
    std::string device = read_name("a device");
    if (in_.accept(":")) device += ":";
    device += in_.read_all_of("0123456789");
    value.device = read_device(device, start);
  }
  if (in_.accept(" &")) value.memory = static_cast<int32_t>(in_.read_integer());
}

c10::Device ArgumentReader::read_device(const std::string& name, const TextCursor& start) {
  try {
    return c10::Device(name);
  } catch (const std::exception&) {
    start.fail(fmt::format("expected a device, got '{}'", name));
  }
}

Argument ArgumentReader::read_argument(const c10::TypePtr& type) {
  in_.skip_space();
  if (in_.accept("%")) return read_known_value();
  if (in_.accept("[")) {
    const Depth depth(*this);
    return read_list(type);
  }
  if (in_.peek() == '"') return Argument::fixed(in_.read_quoted());
  const TextCursor start = in_;
  if (is_of(type, c10::TypeKind::ScalarTypeType)) {
    if (in_.accept("None")) return {};
    return Argument::fixed(static_cast<int64_t>(read_dtype()));
  }
  if (accept_word("None")) return {};
  if (accept_word("True")) return Argument::fixed(true);
  if (accept_word("False")) return Argument::fixed(false);
  if (accept_word("undefined")) return Argument::fixed(at::Tensor());
  if (in_.accept("device(")) {
    c10::IValue device = read_device(in_.read_quoted(), start);
    in_.expect(")");
    return Argument::fixed(std::move(device));
  }
  if (in_.accept("complex(")) {
    const double real = read_double();
    in_.expect(",");
    skip_blanks();
    const double imaginary = read_double();
    in_.expect(")");
    return Argument::fixed(c10::complex<double>(real, imaginary));
  }
  if (in_.accept("generator(")) start.fail("a generator cannot be read from a text");
  if (in_.accept("object(")) start.fail("an object cannot be read from a text");
  return read_number();
}

bool ArgumentReader::accept_word(std::string_view word) {
  const TextCursor start = in_;
  if (in_.read_word() == word) return true;
  in_ = start;
  return false;
}

Argument ArgumentReader::read_number() {
  const TextCursor start = in_;
  const std::string_view token = in_.read_all_of(kNumberCharacters);
  // Looks ahead only: the same characters may begin a double, an integer or an expression of sizes.
  const bool is_special = accept_word("inf") || accept_word("nan");
  in_ = start;
  const bool has_digits = token.find_first_of("0123456789") != std::string_view::npos;
  if (is_special || (has_digits && token.find_first_of(".eE") != std::string_view::npos)) {
    return Argument::fixed(read_double());
  }
  if (token == "-9223372036854775808") {  // its digits alone do not fit
    in_.accept(token);
    return Argument::fixed(std::numeric_limits<int64_t>::min());
  }
  SizeExpr size = parse_size_expr(in_, size_names_);
  if (size.is_number()) return Argument::fixed(size.number());
  return size;
}

double ArgumentReader::read_double() {
  const TextCursor start = in_;
  if (accept_word("nan")) return std::numeric_limits<double>::quiet_NaN();
  if (accept_word("inf")) return std::numeric_limits<double>::infinity();
  if (in_.accept("-inf")) return -std::numeric_limits<double>::infinity();
  const std::string_view token = in_.read_all_of(kNumberCharacters);
  double number = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
  if (error != std::errc() || end != token.data() + token.size()) {
    start.fail(fmt::format("expected a number, got '{}'", token));
  }
  return number;
}

Argument ArgumentReader::read_list(const c10::TypePtr& type) {
  c10::TypePtr element = element_type(type);
  if (element == nullptr) element = c10::AnyType::get();
  Argument::List list;
  while (in_.skip_space(), !in_.accept("]")) {
    if (!list.empty()) in_.expect(",");
    list.push_back(read_argument(element));
  }
  std::vector<c10::IValue> fixed;
  for (const Argument& each : list) {
    if (each.fixed_value() != nullptr) fixed.push_back(*each.fixed_value());
  }
  // A list without values is one fixed value, as capture makes it. Lists of tensors stay lists,
  // even if they are empty.
  if (fixed.size() < list.size() || takes_tensors(type)) return list;
  return Argument::fixed(fixed_list(fixed, type));
}

}  // namespace stagecraft
