#include "stagecraft/exported/tree_json.h"

#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/json_stream.h"

namespace stagecraft::exported {

namespace {

using Json = nlohmann::json;

constexpr int64_t kTreeVersion = 1;

/// A dict's keys; nothing when the context is something else.
std::optional<std::vector<std::string>> keys_of(const Json& context) {
  // A defaultdict has its factory first.
  const bool has_factory = context.is_object() && context.contains("dict_context");
  const Json& list = has_factory ? context.at("dict_context") : context;
  if (!list.is_array()) return std::nullopt;
  std::vector<std::string> keys;
  for (const Json& key : list) {
    if (key.is_string()) {
      keys.push_back(key.get<std::string>());
    } else if (key.is_number_integer()) {
      keys.push_back(json_to_text(key));
    } else {
      return std::nullopt;
    }
  }
  return keys;
}

TreeSpec tree_of(const JsonField& field, int depth) {
  if (depth > kMaxTreeDepth) field.fail(fmt::format("nested deeper than {}", kMaxTreeDepth));
  if (!field.has("type")) return TreeSpec::leaf();
  const std::string type = field.at("type").text();
  std::vector<TreeSpec> children;
  field.at("children_spec").for_each([&](const JsonField& child) {
    children.push_back(tree_of(child, depth + 1));
  });
  if (type == "builtins.tuple" || type == "collections.namedtuple") {
    return TreeSpec::tuple(std::move(children));
  }
  if (type == "builtins.list" || type == "collections.deque") {
    return TreeSpec::list(std::move(children));
  }
  // The context is a text that contains JSON.
  std::optional<std::vector<std::string>> keys;
  if (field.has("context")) {
    const std::string context = field.at("context").text();
    keys = keys_of(try_json_from_text(context));
  }
  const bool is_dict = keys && keys->size() == children.size() &&
                       std::set<std::string>(keys->begin(), keys->end()).size() == keys->size();
  if (is_dict) return TreeSpec::dict(*keys, std::move(children));
  if (type.ends_with("dict") || type.ends_with("Dict")) {
    field.fail("expected a dict with unique string keys");
  }
  return TreeSpec::tuple(std::move(children));
}

}  // namespace

TreeSpec read_tree(const std::string& json, const std::string& what) {
  const Json parsed = parse_json(json, what);
  const JsonField top(parsed, what);
  const int64_t version = top.at(std::size_t{0}).integer();
  require<FileError>(version == kTreeVersion, "{}: it is written in version {}, expected {}", what,
                     version, kTreeVersion);
  const JsonField tree = top.at(std::size_t{1});
  return tree_of(tree, 0);
}

}  // namespace stagecraft::exported
