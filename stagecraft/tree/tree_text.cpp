#include "stagecraft/tree/tree_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace stagecraft {
namespace {

using Kind = TreeSpec::Kind;
using LeafText = std::function<std::string(std::size_t)>;
using ReadLeaf = std::function<void(TextCursor&)>;

void print(const TreeSpec& spec, const LeafText& leaf_text, std::size_t& leaf, std::string& out) {
  if (spec.is_leaf()) {
    out += leaf_text(leaf++);
    return;
  }
  const char* const brackets = spec.kind() == Kind::kTuple  ? "()"
                               : spec.kind() == Kind::kList ? "[]"
                                                            : "{}";
  out += brackets[0];
  for (std::size_t i = 0; i < spec.children().size(); ++i) {
    if (i > 0) out += ", ";
    if (spec.kind() == Kind::kDict) out += quote(spec.key(i)) + ": ";
    print(spec.children()[i], leaf_text, leaf, out);
  }
  // The comma tells the tuple from mere parentheses.
  if (spec.kind() == Kind::kTuple && spec.children().size() == 1) out += ',';
  out += brackets[1];
}

class Parser {
 public:
  Parser(TextCursor& in, const ReadLeaf& read_leaf) : in_(in), read_leaf_(read_leaf) {}

  TreeSpec read(int depth) {
    if (depth > kMaxTreeDepth) in_.fail(fmt::format("nested deeper than {}", kMaxTreeDepth));
    in_.skip_space();
    if (in_.accept("(")) return read_tuple(depth);
    if (in_.accept("[")) {
      std::vector<TreeSpec> children;
      read_items("]", [&] { children.push_back(read(depth + 1)); });
      return TreeSpec::list(std::move(children));
    }
    if (in_.accept("{")) return read_dict(depth);
    read_leaf_(in_);
    return TreeSpec::leaf();
  }

 private:
  // Reads items separated by commas, and `close`. A comma after the last item is allowed. Returns
  // whether there was one.
  template <typename F>
  bool read_items(std::string_view close, F&& read_item) {
    bool comma = false;
    while (true) {
      in_.skip_space();
      if (in_.accept(close)) return comma;
      read_item();
      in_.skip_space();
      comma = in_.accept(",");
      if (!comma) {
        in_.expect(close);
        return false;
      }
    }
  }

  TreeSpec read_tuple(int depth) {
    std::vector<TreeSpec> children;
    const bool comma = read_items(")", [&] { children.push_back(read(depth + 1)); });
    if (children.size() == 1 && !comma) {
      in_.fail("a tuple of one is written (x,); a leaf takes no parentheses");
    }
    return TreeSpec::tuple(std::move(children));
  }

  TreeSpec read_dict(int depth) {
    std::vector<std::string> keys;
    std::vector<TreeSpec> children;
    read_items("}", [&] {
      const TextCursor start = in_;
      std::string key = in_.read_quoted();
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
        start.fail(fmt::format("the key {} appears twice", quote(key)));
      }
      keys.push_back(std::move(key));
      in_.skip_space();
      in_.expect(":");
      children.push_back(read(depth + 1));
    });
    return TreeSpec::dict(keys, std::move(children));
  }

  TextCursor& in_;
  const ReadLeaf& read_leaf_;
};

}  // namespace

std::string to_text(const TreeSpec& spec, const LeafText& leaf_text) {
  std::string out;
  std::size_t leaf = 0;
  print(spec, leaf_text, leaf, out);
  return out;
}

std::string to_text(const TreeSpec& spec) {
  return to_text(spec, [](std::size_t) { return std::string("*"); });
}

TreeSpec read_tree_spec(TextCursor& in, const ReadLeaf& read_leaf) {
  return Parser(in, read_leaf).read(0);
}

TreeSpec parse_tree_spec(std::string_view text, const ReadLeaf& read_leaf) {
  TextCursor in(text);
  TreeSpec spec = read_tree_spec(in, read_leaf);
  in.skip_space();
  in.expect_end();
  return spec;
}

TreeSpec parse_tree_spec(std::string_view text) {
  return parse_tree_spec(text, [](TextCursor& in) {
    if (!in.accept("*")) {
      in.fail(fmt::format("expected '*', '(', '[' or '{{', got {}", in.describe_next()));
    }
  });
}

}  // namespace stagecraft
