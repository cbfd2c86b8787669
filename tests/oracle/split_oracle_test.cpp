#include <optional>

#include <gtest/gtest.h>

#include <ATen/core/Dict.h>

#include "stagecraft/base/error.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree.h"
#include "tests/oracle/cases.h"
#include "tests/oracle/mask_recipe.h"

namespace stagecraft::oracle {
namespace {

const std::string kMask = "__block_mask__";

bool is_mask(const c10::IValue& value) {
  return value.isGenericDict() && value.toGenericDict().contains(kMask);
}

// The tree with real block masks in the places where the script wrote their recipes.
c10::IValue with_masks(const c10::IValue& value) {
  if (is_mask(value)) {
    return make_opaque(build_mask(Case(value.toGenericDict().at(kMask)).get("recipe")));
  }
  if (value.isTuple() || value.isList()) {
    std::vector<c10::IValue> elements;
    if (value.isTuple()) {
      for (const auto& element : value.toTupleRef().elements())
        elements.push_back(with_masks(element));
      return tree::tuple(elements);
    }
    for (const auto& element : value.toListRef()) elements.push_back(with_masks(element));
    return tree::list(elements);
  }
  if (value.isGenericDict()) {
    std::vector<std::pair<std::string, c10::IValue>> entries;
    for (const auto& entry : value.toGenericDict()) {
      entries.emplace_back(entry.key().toStringRef(), with_masks(entry.value()));
    }
    return tree::dict(entries);
  }
  return value;
}

// Expects the same structure, and equal leaves; masks as torch has them.
void expect_same(const c10::IValue& actual, const c10::IValue& expected) {
  if (is_mask(expected)) {
    const auto mask = find_opaque<BlockMask>(actual);
    ASSERT_TRUE(mask) << describe(actual);
    expect_mask(*mask, Case(expected.toGenericDict().at(kMask)).get("tensors"));
  } else if (expected.isTuple()) {
    const auto& left = actual.toTupleRef().elements();
    const auto& right = expected.toTupleRef().elements();
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); ++i) expect_same(left[i], right[i]);
  } else if (expected.isList()) {
    const auto left = actual.toListRef();
    const auto right = expected.toListRef();
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t i = 0; i < left.size(); ++i) expect_same(left[i], right[i]);
  } else if (expected.isGenericDict()) {
    const auto left = actual.toGenericDict();
    ASSERT_EQ(left.size(), expected.toGenericDict().size());
    for (const auto& entry : expected.toGenericDict()) {
      ASSERT_TRUE(left.contains(entry.key()));
      expect_same(left.at(entry.key()), entry.value());
    }
  } else {
    EXPECT_TRUE(tree::leaf_equal(actual, expected))
        << describe(actual) << " instead of " << describe(expected);
  }
}

std::optional<ChunkSpec> spec_of(const Case& item, const std::string& name) {
  const auto text = item.get(name);
  if (text.isNone()) return std::nullopt;
  return parse_chunk_spec(text.toStringRef());
}

std::vector<Arguments> split(const Case& item) {
  const c10::IValue args = with_masks(item.get("args"));
  const c10::IValue kwargs = with_masks(item.get("kwargs"));
  std::vector<Kwargs::Entry> named;
  for (const auto& entry : kwargs.toGenericDict()) {
    named.emplace_back(entry.key().toStringRef(), entry.value());
  }
  return split_args_kwargs_into_chunks(
      args.toTupleRef().elements().vec(), Kwargs(std::move(named)), item.integer("chunks"),
      {spec_of(item, "args_spec"), spec_of(item, "kwargs_spec"), item.get("masked").toBool()});
}

TEST(SplitOracle, ChunksAreThoseOfTorch) {
  const auto cases = read_cases("split");
  EXPECT_GE(cases.size(), 200u);
  int legal = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const Case& item = cases[i];
    if (!item.get("raises").isNone()) {
      EXPECT_THROW(split(item), Error) << item.get("raises").toStringRef();
      continue;
    }
    ++legal;
    const auto chunks = split(item);
    const auto args = item.get("out_args").toListRef().vec();
    const auto kwargs = item.get("out_kwargs").toListRef().vec();
    ASSERT_EQ(chunks.size(), args.size());
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      SCOPED_TRACE(c);
      expect_same(tree::tuple(chunks[c].args), args[c]);
      expect_same(tree::dict({chunks[c].kwargs.begin(), chunks[c].kwargs.end()}), kwargs[c]);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(legal, 150);
  EXPECT_LT(legal, static_cast<int>(cases.size())) << "no misuse was written";
}

}  // namespace
}  // namespace stagecraft::oracle
