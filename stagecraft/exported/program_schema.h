#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace stagecraft::exported {

struct RawGraph;

/// An int, float or bool of an archive: a constant, or an expression over symbols with its value in
/// the example.
struct RawSymbol {
  std::optional<int64_t> number = {};
  std::string expression = {};
  std::optional<int64_t> hint = {};
};

/// The metadata of a tensor in an archive.
struct RawTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<RawSymbol> sizes = {};
  std::vector<RawSymbol> strides = {};
  RawSymbol offset = {};
  bool requires_grad = false;
  c10::Device device = c10::kCPU;
  bool is_strided = true;
};

/// The name and kind of a value of a graph.
struct RawName {
  enum class Kind : uint8_t { kTensor, kSymInt, kSymBool, kSymFloat, kObject };
  Kind kind = Kind::kTensor;
  std::string name;
};

/// An argument: a name, a fixed value (enumerations are torch's own numbers), a list, or a graph.
struct RawArgument {
  using List = std::vector<RawArgument>;

  std::variant<c10::IValue, RawName, List, std::shared_ptr<const RawGraph>> content = {};

  const c10::IValue* fixed() const { return std::get_if<c10::IValue>(&content); }
  const RawName* name() const { return std::get_if<RawName>(&content); }
  const List* list() const { return std::get_if<List>(&content); }
  const RawGraph* graph() const {
    const auto* found = std::get_if<std::shared_ptr<const RawGraph>>(&content);
    return found == nullptr ? nullptr : found->get();
  }
};

struct RawNode {
  std::string target;
  std::string name;
  std::vector<std::pair<std::string, RawArgument>> inputs = {};
  std::vector<RawArgument> outputs = {};
  std::string module = {};        ///< the innermost module that called it
  std::string own_function = {};  ///< the custom autograd function that called it
};

struct RawGraph {
  std::vector<RawArgument> inputs = {};
  std::vector<RawArgument> outputs = {};
  std::vector<RawNode> nodes = {};
  std::unordered_map<std::string, RawTensor> tensors = {};
  std::unordered_map<std::string, RawSymbol> symbols = {};  ///< ints, bools and floats
};

/// The role of an input of the graph.
struct RawInputSpec {
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant, kUser, kFixed };
  Kind kind = Kind::kUser;
  RawArgument argument = {};
  std::string target = {};  ///< the name of the tensor in the model
  bool is_persistent = true;
};

/// The role of an output of the graph.
struct RawOutputSpec {
  enum class Kind : uint8_t { kUser, kStateChange, kInputChange };
  Kind kind = Kind::kUser;
  RawArgument argument = {};
  std::string target = {};
};

struct RawRange {
  std::optional<int64_t> least = {};
  std::optional<int64_t> greatest = {};
};

/// A program in the form in which the archive has it.
struct RawProgram {
  RawGraph graph = {};
  std::vector<RawInputSpec> inputs = {};
  std::vector<RawOutputSpec> outputs = {};
  std::string in_tree = {};
  std::string out_tree = {};
  std::vector<std::string> argument_names = {};
  std::map<std::string, RawRange> ranges = {};
  std::vector<std::string> guards = {};
  std::string torch_version = {};
};

/// Where the bytes of a parameter, buffer or constant are.
struct RawPayload {
  std::string path;
  bool is_pickled = false;
  std::optional<RawTensor> tensor = {};
};

}  // namespace stagecraft::exported
