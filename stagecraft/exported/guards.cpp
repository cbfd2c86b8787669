#include "stagecraft/exported/guards.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "stagecraft/base/text_cursor.h"

namespace stagecraft::exported {

namespace {

class InputWords {
 public:
  InputWords(const std::vector<std::string>& names, const GraphParts& parts)
      : names_(names), parts_(parts) {}

  /// Reads the size of an input, `L['tree']['pair'][0].size()[1]`, or a number, `L['n']`.
  std::optional<SizeExpr> operator()(TextCursor& in) const {
    if (!in.accept("L['")) return std::nullopt;
    const TextCursor start = in;
    std::size_t leaf = 0;
    TreeSpec spec;
    if (!find_argument(std::string(in.read_word()), leaf, spec))
      start.fail("there is no such input");
    in.expect("']");
    while (in.accept("[")) {
      std::optional<std::size_t> child;
      if (in.accept("'")) {
        const std::string_view key = in.read_word();
        in.expect("'");
        child = child_of(spec, key);
      } else {
        child = static_cast<std::size_t>(in.read_integer());
      }
      in.expect("]");
      const auto children = spec.children();
      if (!child || *child >= children.size()) start.fail("there is no such input");
      for (std::size_t i = 0; i < *child; ++i) leaf += children[i].num_leaves();
      spec = TreeSpec(children[*child]);
    }
    if (!spec.is_leaf()) start.fail("it is not a tensor");
    const Argument& input = parts_.inputs[leaf];
    if (const SizeExpr* size = input.size()) return *size;
    if (!in.accept(".size()[") || input.value() == nullptr) start.fail("it is not a size");
    const auto dim = static_cast<std::size_t>(in.read_integer());
    in.expect("]");
    const GraphValue& value = parts_.values[*input.value()];
    if (dim >= value.shape.size() || (dim < 32 && (value.open_dims >> dim & 1) != 0)) {
      start.fail("it has no such size");
    }
    return value.shape[dim];
  }

 private:
  static std::optional<std::size_t> child_of(const TreeSpec& spec, std::string_view key) {
    if (spec.kind() != TreeSpec::Kind::kDict) return std::nullopt;
    for (std::size_t i = 0; i < spec.children().size(); ++i) {
      if (spec.key(i) == key) return i;
    }
    return std::nullopt;
  }

  bool find_argument(const std::string& name, std::size_t& leaf, TreeSpec& spec) const {
    const auto positional = parts_.args.children();
    const auto number = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
    for (std::size_t i = 0; i < positional.size(); ++i) {
      if (i == number && i < names_.size()) {
        spec = positional[i];
        return true;
      }
      leaf += positional[i].num_leaves();
    }
    const auto named = parts_.kwargs.children();
    for (std::size_t i = 0; i < named.size(); ++i) {
      if (parts_.kwargs.key(i) == name) {
        spec = named[i];
        return true;
      }
      leaf += named[i].num_leaves();
    }
    return false;
  }

  const std::vector<std::string>& names_;
  const GraphParts& parts_;
};

/// Turns `L['x'].size()[1] % 2 == 0` into `x.size(1) % 2 == 0`.
std::string in_the_callers_words(std::string_view text) {
  std::string result;
  std::size_t at = 0;
  auto accept = [&](std::string_view token) {
    if (!text.substr(at).starts_with(token)) return false;
    at += token.size();
    return true;
  };
  auto take_until = [&](std::string_view token) {
    const std::size_t end = std::min(text.find(token, at), text.size());
    result += text.substr(at, end - at);
    at = std::min(end + token.size(), text.size());
  };
  while (at < text.size()) {
    if (accept("L['")) {
      take_until("']");
    } else if (accept(".size()[")) {
      result += ".size(";
      take_until("]");
      result += ")";
    } else if (accept("(-1)*")) {
      result += "-";
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> add_guards(const std::vector<std::string>& guards,
                                    const std::vector<std::string>& names, SizeTable& sizes,
                                    GraphParts& parts) {
  std::vector<std::string> unread;
  const InputWords words(names, parts);
  for (const std::string& guard : guards) {
    try {
      SizeExpr holds = sizes.parse(guard, words);
      // A guard that does not depend on sizes needs no check: it always holds, or does not belong
      // to this model.
      if (holds.is_number()) continue;
      parts.guards.push_back({std::move(holds), in_the_callers_words(guard)});
    } catch (const Error&) {
      unread.push_back(in_the_callers_words(guard));
    }
  }
  return unread;
}

}  // namespace stagecraft::exported
