#include "cli/model/module_text.h"

#include <vector>

#include <fmt/format.h>

#include "cli/model/units.h"
#include "cli/output.h"

namespace stagecraft::cli {
namespace {

/// Up to this many modules that are alike are shown one by one.
constexpr std::size_t kFew = 3;
constexpr std::size_t kWidestModule = 60;

class TreeText {
 public:
  TreeText(const ProgramView& view, std::size_t depth, bool is_every)
      : view_(view),
        depth_(depth),
        is_every_(is_every),
        table_({"Modules", "operators", "parameters", "", "FLOP", ""}, 1) {}

  std::string print() {
    add("(the model)", 0);
    add_children(0);
    return table_.to_string() + '\n';
  }

 private:
  void add(const std::string& name, std::size_t number) {
    const ModuleFacts& module = view_.tree.module(number);
    table_.add({std::string(2 + 2 * module.depth, ' ') + name, grouped(module.operators),
                short_count(module.parameters),
                percent_of(module.parameters, view_.costs.total_parameters),
                short_count(module.flops), percent_of(module.flops, view_.costs.total_flops)});
  }

  /// "layers.3" for a module of a list, otherwise the last part of the name.
  static std::string label(const std::string& name) {
    if (!is_numbered(name)) return shown(last_part(name), kWidestModule);
    const std::string_view list = last_part(parent_part(name));
    return list.empty() ? std::string(last_part(name))
                        : fmt::format("{}.{}", shown(list, kWidestModule), last_part(name));
  }

  void add_children(std::size_t parent) {
    const ModuleTree& tree = view_.tree;
    if (tree.module(parent).depth >= depth_) return;
    const std::vector<std::size_t>& children = tree.module(parent).children;
    for (std::size_t i = 0; i < children.size();) {
      const std::size_t first = children[i];
      add(label(tree.module(first).name), first);
      add_children(first);
      // Find the end of the following modules that are like module i.
      std::size_t end = i + 1;
      while (end < children.size() && is_numbered(tree.module(first).name) &&
             is_numbered(tree.module(children[end]).name) && tree.is_alike(first, children[end])) {
        ++end;
      }
      if (is_every_ || end - i <= kFew) {
        ++i;
        continue;
      }
      add(fmt::format("{} to {}, each like {}", label(tree.module(children[i + 1]).name),
                      label(tree.module(children[end - 1]).name), label(tree.module(first).name)),
          first);
      i = end;
    }
  }

  const ProgramView& view_;
  std::size_t depth_;
  bool is_every_;
  TextTable table_;
};

}  // namespace

std::string modules_text(const ProgramView& view, std::size_t depth, bool is_every) {
  return TreeText(view, depth, is_every).print();
}

}  // namespace stagecraft::cli
