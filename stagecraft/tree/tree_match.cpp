#include "stagecraft/tree/tree_match.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft::tree {
namespace {

using Kind = TreeSpec::Kind;

bool is_sequence(const TreeSpec& spec) {
  return spec.kind() == Kind::kTuple || spec.kind() == Kind::kList;
}

std::optional<std::size_t> index_of(const TreeSpec& dict, const std::string& key,
                                    std::size_t guess) {
  const std::size_t size = dict.children().size();
  if (guess < size && dict.key(guess) == key) return guess;
  for (std::size_t i = 0; i < size; ++i) {
    if (dict.key(i) == key) return i;
  }
  return std::nullopt;
}

// Walks both structures together and collects, leaf by leaf of `expected`, the leaf of `actual`.
class Matcher {
 public:
  Matcher(Sequences sequences, std::vector<std::size_t>* leaves)
      : sequences_(sequences), leaves_(leaves) {}

  // `first_leaf` is the number of actual's first leaf.
  bool walk(const TreeSpec& expected, const TreeSpec& actual, std::size_t first_leaf) {
    if (expected.is_leaf() && actual.is_leaf()) {
      if (leaves_ != nullptr) leaves_->push_back(first_leaf);
      return true;
    }
    if (!same_kind(expected, actual)) {
      return fail(
          fmt::format("expected {}, got {}", describe_kind(expected), describe_kind(actual)));
    }
    return expected.kind() == Kind::kDict ? walk_dict(expected, actual, first_leaf)
                                          : walk_sequence(expected, actual, first_leaf);
  }

  Difference difference() && {
    Difference found{{}, std::move(message_)};
    std::for_each(steps_.rbegin(), steps_.rend(), [&](const auto& step) { found.path += step; });
    return found;
  }

 private:
  bool same_kind(const TreeSpec& expected, const TreeSpec& actual) const {
    if (is_sequence(expected) && is_sequence(actual)) {
      return sequences_ == Sequences::kAlike || expected.kind() == actual.kind();
    }
    return expected.kind() == actual.kind();
  }

  bool walk_sequence(const TreeSpec& expected, const TreeSpec& actual, std::size_t first_leaf) {
    const std::size_t size = expected.children().size();
    if (size != actual.children().size()) {
      return fail(
          fmt::format("expected {}, got {}", describe_kind(expected), describe_kind(actual)));
    }
    for (std::size_t i = 0; i < size; ++i) {
      const TreeSpec& child = actual.children()[i];
      if (!walk(expected.children()[i], child, first_leaf)) return step(path_step(expected, i));
      first_leaf += child.num_leaves();
    }
    return true;
  }

  bool walk_dict(const TreeSpec& expected, const TreeSpec& actual, std::size_t first_leaf) {
    std::vector<std::size_t> starts;
    starts.reserve(actual.children().size());
    for (const auto& child : actual.children()) {
      starts.push_back(first_leaf);
      first_leaf += child.num_leaves();
    }
    for (std::size_t i = 0; i < expected.children().size(); ++i) {
      const auto found = index_of(actual, expected.key(i), i);
      if (!found) return fail(fmt::format("the key {} is missing", quote(expected.key(i))));
      if (!walk(expected.children()[i], actual.children()[*found], starts[*found])) {
        return step(path_step(expected, i));
      }
    }
    if (actual.children().size() == expected.children().size()) return true;
    for (std::size_t i = 0; i < actual.children().size(); ++i) {
      if (!index_of(expected, actual.key(i), i)) {
        return fail(fmt::format("the key {} is not expected", quote(actual.key(i))));
      }
    }
    return true;
  }

  bool fail(std::string message) {
    message_ = std::move(message);
    return false;
  }

  bool step(std::string path_step) {
    steps_.push_back(std::move(path_step));
    return false;
  }

  Sequences sequences_;
  std::vector<std::size_t>* leaves_;
  std::vector<std::string> steps_;  // innermost first
  std::string message_;
};

}  // namespace

std::optional<Difference> find_difference(const TreeSpec& expected, const TreeSpec& actual,
                                          Sequences sequences) {
  Matcher matcher(sequences, nullptr);
  if (matcher.walk(expected, actual, 0)) return std::nullopt;
  return std::move(matcher).difference();
}

std::vector<std::size_t> match(const TreeSpec& expected, const TreeSpec& actual,
                               std::string_view root, Sequences sequences) {
  std::vector<std::size_t> leaves;
  leaves.reserve(expected.num_leaves());
  Matcher matcher(sequences, &leaves);
  if (!matcher.walk(expected, actual, 0)) {
    const Difference found = std::move(matcher).difference();
    throw MetadataError(fmt::format("{}{}: {}", root, found.path, found.message));
  }
  return leaves;
}

}  // namespace stagecraft::tree
