#include "stagecraft/exported/read_program.h"

#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/json_stream.h"
#include "stagecraft/exported/read_graph.h"

namespace stagecraft::exported {

namespace {

using Json = nlohmann::json;

constexpr int64_t kSchemaMajor = 8;

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

/// Parses a program. Nodes and tensors of its graph are converted one by one while the text is
/// parsed.
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
    // Their elements were already taken while the text was parsed. Only their kinds are checked
    // here.
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
