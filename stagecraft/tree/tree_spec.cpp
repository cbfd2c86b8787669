#include "stagecraft/tree/tree_spec.h"

#include <unordered_set>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/tree/tree_match.h"

namespace stagecraft {

struct TreeSpec::Node {
  Kind kind;
  std::vector<c10::IValue> keys;  // strings
  std::vector<TreeSpec> children;
  Origin origin;
  std::size_t num_leaves;
};

TreeSpec TreeSpec::make(Kind kind, std::vector<c10::IValue> keys, std::vector<TreeSpec> children,
                        Origin origin) {
  std::size_t leaves = 0;
  for (const auto& child : children) leaves += child.num_leaves();
  return TreeSpec(std::make_shared<const Node>(
      Node{kind, std::move(keys), std::move(children), std::move(origin), leaves}));
}

TreeSpec TreeSpec::tuple(std::vector<TreeSpec> children) {
  return make(Kind::kTuple, {}, std::move(children), {});
}

TreeSpec TreeSpec::list(std::vector<TreeSpec> children, Origin origin) {
  return make(Kind::kList, {}, std::move(children), std::move(origin));
}

TreeSpec TreeSpec::dict(const std::vector<std::string>& keys, std::vector<TreeSpec> children) {
  require<ArgumentError>(keys.size() == children.size(),
                         "a dict needs one key for each child: got {} keys and {} children",
                         keys.size(), children.size());
  std::unordered_set<std::string_view> seen;
  for (const auto& key : keys) {
    require<ArgumentError>(seen.insert(key).second, "a dict has the key {} twice", quote(key));
  }
  return dict_of({keys.begin(), keys.end()}, std::move(children), {});
}

TreeSpec TreeSpec::dict_of(std::vector<c10::IValue> keys, std::vector<TreeSpec> children,
                           Origin origin) {
  return make(Kind::kDict, std::move(keys), std::move(children), std::move(origin));
}

TreeSpec::Kind TreeSpec::kind() const {
  return node_ ? node_->kind : Kind::kLeaf;
}

std::size_t TreeSpec::num_leaves() const {
  return node_ ? node_->num_leaves : 1;
}

std::span<const TreeSpec> TreeSpec::children() const {
  return node_ ? std::span<const TreeSpec>(node_->children) : std::span<const TreeSpec>();
}

const c10::IValue& TreeSpec::key_value(std::size_t child) const {
  SC_ASSERT(kind() == Kind::kDict && child < node_->keys.size());
  return node_->keys[child];
}

const TreeSpec::Origin& TreeSpec::origin() const {
  static const Origin kNone;
  return node_ ? node_->origin : kNone;
}

std::string TreeSpec::leaf_path(std::size_t leaf, std::string_view root) const {
  require<ArgumentError>(leaf < num_leaves(), "leaf {} of a tree with {} leaves", leaf,
                         num_leaves());
  std::string path(root);
  const TreeSpec* at = this;
  while (!at->is_leaf()) {
    std::size_t child = 0;
    while (leaf >= at->children()[child].num_leaves()) {
      leaf -= at->children()[child].num_leaves();
      ++child;
    }
    path += path_step(*at, child);
    at = &at->children()[child];
  }
  return path;
}

bool operator==(const TreeSpec& a, const TreeSpec& b) {
  return a.node_ == b.node_ || !tree::find_difference(a, b).has_value();
}

std::string path_step(const TreeSpec& spec, std::size_t child) {
  if (spec.kind() == TreeSpec::Kind::kDict) return fmt::format("[{}]", quote(spec.key(child)));
  return fmt::format("[{}]", child);
}

std::string describe_kind(const TreeSpec& spec) {
  const std::size_t size = spec.children().size();
  switch (spec.kind()) {
    case TreeSpec::Kind::kLeaf:
      return "leaf";
    case TreeSpec::Kind::kTuple:
      return fmt::format("tuple of {}", size);
    case TreeSpec::Kind::kList:
      return fmt::format("list of {}", size);
    case TreeSpec::Kind::kDict:
      return fmt::format("dict of {}", size);
  }
  return "unknown";
}

}  // namespace stagecraft
