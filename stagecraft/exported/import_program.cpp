#include "stagecraft/exported/import_program.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/exported/guards.h"
#include "stagecraft/exported/node_builder.h"
#include "stagecraft/exported/shared_memory.h"
#include "stagecraft/exported/size_table.h"
#include "stagecraft/exported/tree_json.h"
#include "stagecraft/graph/names.h"

namespace stagecraft::exported {

namespace {

/// Makes the parts of the whole graph.
class ProgramImport {
 public:
  ProgramImport(const RawProgram& program, const Payload& payload)
      : program_(program),
        payload_(payload),
        builder_(result_.parts, sizes_, names_, result_.warnings) {}

  ImportedProgram run() {
    require<FileError>(program_.inputs.size() == program_.graph.inputs.size(),
                       "the graph has {} inputs, and the signature {}",
                       program_.graph.inputs.size(), program_.inputs.size());
    require<FileError>(program_.outputs.size() == program_.graph.outputs.size(),
                       "the graph has {} outputs, and the signature {}",
                       program_.graph.outputs.size(), program_.outputs.size());
    find_sizes();
    add_states();
    add_inputs();
    copy_changed_states();
    builder_.import_nodes(program_.graph, scope_, {});
    add_outputs();
    GraphParts& parts = result_.parts;
    for (const std::string& guard :
         add_guards(program_.guards, program_.argument_names, sizes_, parts)) {
      result_.warnings.push_back(fmt::format("not checked: {}", guard));
    }
    parts.sizes = sizes_.sizes();
    find_shared_memory(parts, pieces_);
    return std::move(result_);
  }

 private:
  const RawTensor& meta_of(const RawArgument& argument) const {
    const RawName* name = argument.name();
    require<FileError>(name != nullptr && name->kind == RawName::Kind::kTensor,
                       "expected the name of a tensor as an input");
    const auto found = program_.graph.tensors.find(name->name);
    require<FileError>(found != program_.graph.tensors.end(),
                       "the archive does not say what the tensor {} is", name->name);
    return found->second;
  }

  // Sizes ----------------------------------------------------------------------------------------

  // Finds every symbol in the shapes of the inputs. A symbol is named after the first dimension
  // that is only this symbol.
  void find_sizes() {
    std::vector<std::pair<std::string, const RawSymbol*>> found;  // with the wished names
    for (const RawInputSpec& input : program_.inputs) {
      const RawName* name = input.argument.name();
      if (input.kind != RawInputSpec::Kind::kUser || name == nullptr) continue;
      if (name->kind == RawName::Kind::kSymInt) {
        const auto symbol = program_.graph.symbols.find(name->name);
        require<FileError>(symbol != program_.graph.symbols.end(),
                           "the archive does not say what the number {} is", name->name);
        found.emplace_back(name->name, &symbol->second);
      } else if (name->kind == RawName::Kind::kTensor) {
        const RawTensor& meta = meta_of(input.argument);
        for (std::size_t d = 0; d < meta.sizes.size(); ++d) {
          found.emplace_back(fmt::format("{}_dim{}", name->name, d), &meta.sizes[d]);
        }
      }
    }
    for (const bool is_bare_turn : {true, false}) {
      for (const auto& [wish, symbol] : found) {
        if (symbol->number) continue;
        for (const std::string& name : symbols_in(symbol->expression)) {
          const bool is_it = is_bare(symbol->expression, name);
          if (sizes_.has(name) || is_it != is_bare_turn) continue;
          add_size(name, is_it ? wish : name, is_it ? symbol->hint : example_of(name, *symbol));
        }
      }
    }
  }

  void add_size(const std::string& symbol, const std::string& wish,
                std::optional<int64_t> example) {
    GraphSize size;
    size.name = wish;
    const bool is_taken = std::ranges::count(sizes_.sizes(), wish, &GraphSize::name) > 0;
    if (!is_size_name(wish) || is_taken) size.name = symbol;
    size.least = 0;
    const auto range = program_.ranges.find(symbol);
    if (range != program_.ranges.end()) {
      size.least = range->second.least.value_or(0);
      size.greatest = range->second.greatest.value_or(size.greatest);
    }
    size.example =
        std::clamp(example.value_or(size.least), size.least, std::max(size.least, size.greatest));
    size.greatest = std::max(size.least, size.greatest);
    sizes_.add(symbol, std::move(size));
  }

  /// The size of a symbol in the example, from an expression that has no other symbol.
  std::optional<int64_t> example_of(const std::string& name, const RawSymbol& symbol) const {
    for (const auto& [value, meta] : program_.graph.tensors) {
      for (const RawSymbol& size : meta.sizes) {
        if (!size.number && is_bare(size.expression, name) &&
            symbols_in(size.expression) == std::vector<std::string>{name}) {
          return size.hint;
        }
      }
    }
    if (!symbol.hint) return std::nullopt;
    return solve(symbol.expression, name, *symbol.hint);
  }

  // States and inputs ----------------------------------------------------------------------------

  void add_states() {
    using Kind = RawInputSpec::Kind;
    // Two names of one tensor become one state, if they also have the same kind and persistence.
    std::map<
        std::tuple<Kind, bool, std::string, std::vector<int64_t>, std::vector<int64_t>, int64_t>,
        std::size_t>
        seen;
    for (const RawInputSpec& input : program_.inputs) {
      if (input.kind == Kind::kUser || input.kind == Kind::kFixed) continue;
      const Payload::Found found = payload_.get(input.target);
      const at::Tensor& tensor = found.tensor;
      const std::string name = names_.make(input.target);
      const auto [same, is_new] = seen.try_emplace(
          std::tuple(input.kind, input.is_persistent, found.piece, tensor.sizes().vec(),
                     tensor.strides().vec(), tensor.storage_offset()),
          result_.parts.states.size());
      const std::string& key = input.argument.name()->name;
      if (!is_new) {
        GraphState& first = result_.parts.states[same->second];
        if (input.kind != Kind::kConstant) first.other_names.push_back(name);
        scope_[key] = first.value;
        by_target_[input.target] = first.value;
        continue;
      }
      RawTensor meta;
      meta.dtype = tensor.scalar_type();
      for (const int64_t size : tensor.sizes()) meta.sizes.push_back({.number = size});
      const ValueId id = builder_.add_value(name, meta);
      result_.parts.states.push_back(
          {.kind = input.kind == Kind::kParameter ? GraphState::Kind::kParameter
                   : input.kind == Kind::kBuffer  ? GraphState::Kind::kBuffer
                                                  : GraphState::Kind::kConstant,
           .value = id,
           .tensor = tensor,
           .is_persistent = input.is_persistent});
      pieces_.emplace_back(id, found.piece);
      scope_[key] = id;
      by_target_[input.target] = id;
    }
  }

  // A state that the outputs change is read through a copy, because the backward needs its old
  // value.
  void copy_changed_states() {
    std::set<std::string> changed;
    for (const RawOutputSpec& output : program_.outputs) {
      if (output.kind == RawOutputSpec::Kind::kStateChange) changed.insert(output.target);
    }
    for (const RawInputSpec& input : program_.inputs) {
      if (!changed.contains(input.target)) continue;
      if (input.kind == RawInputSpec::Kind::kUser || input.kind == RawInputSpec::Kind::kFixed) {
        continue;
      }
      const std::string& name = input.argument.name()->name;
      scope_[name] = builder_.copy_of(*scope_.at(name).value(), input.target);
    }
  }

  void add_inputs() {
    GraphParts& parts = result_.parts;
    const TreeSpec tree = read_tree(program_.in_tree, "in_spec");
    const auto children = tree.children();
    const bool is_call = children.size() == 2 && children[0].kind() == TreeSpec::Kind::kTuple &&
                         children[1].kind() == TreeSpec::Kind::kDict;
    require<FileError>(is_call, "expected arguments and keyword arguments as in_spec");
    parts.args = children[0];
    parts.kwargs = children[1];
    for (const RawInputSpec& input : program_.inputs) {
      if (input.kind == RawInputSpec::Kind::kFixed) {
        parts.inputs.push_back(builder_.resolve(input.argument, scope_));
        continue;
      }
      if (input.kind != RawInputSpec::Kind::kUser) continue;
      const RawName* name = input.argument.name();
      if (name == nullptr || name->kind == RawName::Kind::kObject) {
        parts.inputs.push_back(builder_.resolve(input.argument, scope_));
      } else if (name->kind == RawName::Kind::kTensor) {
        const ValueId id = builder_.add_value(names_.make(name->name), meta_of(input.argument));
        scope_[name->name] = id;
        parts.inputs.emplace_back(id);
      } else {
        const auto given = program_.graph.symbols.find(name->name);
        require<FileError>(given != program_.graph.symbols.end(),
                           "the archive does not say what the number {} is", name->name);
        parts.inputs.push_back(builder_.number_of(given->second));
      }
    }
    const std::size_t leaves = parts.args.num_leaves() + parts.kwargs.num_leaves();
    require<FileError>(parts.inputs.size() == leaves, "in_spec has {} leaves, the signature {}",
                       leaves, parts.inputs.size());
  }

  void add_outputs() {
    GraphParts& parts = result_.parts;
    for (const RawOutputSpec& output : program_.outputs) {
      using Kind = RawOutputSpec::Kind;
      const Argument value = resolve_output(output.argument);
      if (output.kind == Kind::kUser) {
        parts.outputs.push_back(value);
        continue;
      }
      const auto state = by_target_.find(output.target);
      const auto input = scope_.find(output.target);
      const bool is_state = output.kind == Kind::kStateChange;
      require<FileError>(is_state ? state != by_target_.end() : input != scope_.end(),
                         "there is no {} that could be changed", output.target);
      builder_.copy_back(is_state ? Argument(state->second) : input->second, value, output.target);
    }
    parts.output = read_tree(program_.out_tree, "out_spec");
    require<FileError>(parts.outputs.size() == parts.output.num_leaves(),
                       "out_spec has {} leaves, the signature {}", parts.output.num_leaves(),
                       parts.outputs.size());
  }

  Argument resolve_output(const RawArgument& argument) {
    const RawName* name = argument.name();
    if (name == nullptr || name->kind == RawName::Kind::kTensor) {
      return builder_.resolve(argument, scope_);
    }
    const auto found = program_.graph.symbols.find(name->name);
    require<GraphError>(found != program_.graph.symbols.end(),
                        "the archive does not say what the number {} is", name->name);
    return builder_.number_of(found->second);
  }

  const RawProgram& program_;
  const Payload& payload_;
  ImportedProgram result_;
  SizeTable sizes_;
  UniqueNames names_;
  NodeBuilder builder_;
  Scope scope_;
  std::unordered_map<std::string, ValueId> by_target_;
  std::vector<std::pair<ValueId, std::string>> pieces_;
};

}  // namespace

ImportedProgram import_program(const RawProgram& program, const Payload& payload) {
  return ProgramImport(program, payload).run();
}

}  // namespace stagecraft::exported
