#include "stagecraft/tree/tree.h"

#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree_text.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

class Box : public Opaque {
 public:
  explicit Box(int value) : value_(value) {}
  std::string describe() const override { return "Box"; }
  bool equals(const Opaque& other) const override {
    const auto* box = dynamic_cast<const Box*>(&other);
    return box != nullptr && box->value_ == value_;
  }

 private:
  int value_;
};

c10::IValue box(int value) {
  return make_opaque(c10::make_intrusive<Box>(value));
}

TEST(Tree, FlattenGoesLeftToRightAndUnflattenIsItsInverse) {
  const auto x = at::arange(6);
  const auto value = tree::tuple({x, tree::list({1, 2}),
                                  tree::dict({{"b", c10::IValue()}, {"a", tree::tuple({"s"})}}),
                                  tree::list({}), 2.5});
  const auto flat = tree::flatten(value);
  EXPECT_EQ(to_text(flat.spec), "(*, [*, *], {\"b\": *, \"a\": (*,)}, [], *)");
  ASSERT_EQ(flat.leaves.size(), 6u);
  EXPECT_TRUE(flat.leaves[0].toTensor().is_same(x));
  EXPECT_TRUE(flat.leaves[3].isNone());
  EXPECT_TRUE(tree::equal(tree::unflatten(flat.spec, flat.leaves), value));
  EXPECT_ERROR(tree::unflatten(flat.spec, {1, 2}), ArgumentError, "6 leaves, got 2 values");
}

TEST(Tree, ALeafAloneIsATree) {
  EXPECT_EQ(to_text(tree::flatten(3).spec), "*");
  EXPECT_EQ(tree::unflatten(TreeSpec::leaf(), {7}).toInt(), 7);
}

TEST(Tree, DictsKeepInsertionOrder) {
  const auto value = tree::dict({{"z", 1}, {"a", 2}, {"m", 3}});
  const auto mapped = tree::map(value, [](const c10::IValue& leaf) { return leaf.toInt() * 10; });
  std::string order;
  for (const auto& entry : mapped.toGenericDict()) {
    order += entry.key().toStringRef() + std::to_string(entry.value().toInt());
  }
  EXPECT_EQ(order, "z10a20m30");
}

TEST(Tree, ElementTypesSurviveWhereTheLeavesAllow) {
  c10::List<std::optional<at::Tensor>> optional({at::ones({1}), std::nullopt});
  const auto ints = c10::IValue(std::vector<int64_t>{1, 2});
  const auto identity = [](const c10::IValue& leaf) { return leaf; };
  EXPECT_EQ(*tree::map(optional, identity).toList().elementType(),
            *c10::IValue(optional).toList().elementType());
  EXPECT_TRUE(tree::map(ints, identity).isIntList());
  EXPECT_TRUE(tree::map(ints, [](const auto& leaf) {
                return c10::IValue(static_cast<double>(leaf.toInt()));
              }).isDoubleList());
  EXPECT_TRUE(
      tree::map(ints, [](const auto&) { return c10::IValue(at::ones({1})); }).isTensorList());
  EXPECT_TRUE(tree::map(std::vector<at::Tensor>{}, identity).isTensorList());
  const auto mixed = tree::list({1, "a"});
  EXPECT_EQ(mixed.toList().elementType()->kind(), c10::TypeKind::AnyType);
}

TEST(Tree, MapWithPathNamesEachLeaf) {
  std::vector<std::string> paths;
  tree::map_with_path(tree::tuple({1, tree::dict({{"mask", tree::list({2, 3})}})}), "args",
                      [&](const std::string& path, const c10::IValue& leaf) {
                        paths.push_back(path);
                        return leaf;
                      });
  EXPECT_THAT(paths,
              testing::ElementsAre("args[0]", "args[1][\"mask\"][0]", "args[1][\"mask\"][1]"));
}

TEST(Tree, ZipMatchesDictsByKeyAndNamesTheFirstDifference) {
  const auto a = tree::tuple({1, tree::dict({{"x", 2}, {"y", 3}})});
  const auto b = tree::tuple({10, tree::dict({{"y", 30}, {"x", 20}})});
  const auto pairs = tree::zip(a, b);
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[1].second.toInt(), 20);
  EXPECT_ERROR(
      tree::zip(a, tree::tuple({1, tree::dict({{"x", 2}, {"y", tree::list({3})}})}), "args"),
      MetadataError, "args[1][\"y\"]: expected leaf, got list of 1");
}

TEST(Tree, OpaqueLeavesAreCarriedWhole) {
  const auto mask = box(4);
  const auto value = tree::tuple({mask, 1});
  const auto flat = tree::flatten(value);
  ASSERT_EQ(flat.leaves.size(), 2u);
  EXPECT_TRUE(find_opaque<Box>(flat.leaves[0]));
  EXPECT_FALSE(find_opaque<Box>(flat.leaves[1]));
  const auto rebuilt = tree::unflatten(flat.spec, flat.leaves);
  EXPECT_EQ(find_opaque<Box>(rebuilt.toTupleRef().elements()[0]).get(),
            find_opaque<Box>(mask).get());
}

TEST(Tree, EqualComparesValuesAndNeverMixesKinds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(tree::leaf_equal(nan, nan));
  EXPECT_FALSE(tree::leaf_equal(1, 1.0));
  EXPECT_FALSE(tree::leaf_equal(1, true));
  EXPECT_FALSE(tree::leaf_equal(c10::IValue(), 0));
  EXPECT_TRUE(tree::leaf_equal("a", "a"));
  EXPECT_TRUE(tree::leaf_equal(box(1), box(1)));
  EXPECT_FALSE(tree::leaf_equal(box(1), box(2)));
  EXPECT_FALSE(tree::leaf_equal(box(1), 1));
  EXPECT_TRUE(tree::leaf_equal(at::full({3}, nan), at::full({3}, nan)));
  EXPECT_FALSE(tree::leaf_equal(at::full({3}, nan), at::zeros({3})));
  const double inf = std::numeric_limits<double>::infinity();
  const double max = std::numeric_limits<float>::max();
  EXPECT_FALSE(tree::leaf_equal(at::cat({at::full({1}, inf), at::full({1}, nan)}),
                                at::cat({at::full({1}, max), at::full({1}, nan)})));
  const auto small = [](double value) { return at::full({2}, value).to(at::kFloat8_e4m3fn); };
  EXPECT_TRUE(tree::leaf_equal(small(1), small(1)));
  EXPECT_FALSE(tree::leaf_equal(small(1), small(2)));
  const auto sparse = at::ones({2, 2}).to_sparse();
  EXPECT_TRUE(tree::leaf_equal(sparse, sparse));
  EXPECT_FALSE(tree::leaf_equal(sparse, at::ones({2, 2}).to_sparse()));
  EXPECT_FALSE(tree::leaf_equal(at::zeros({3}), at::zeros({3}, at::kDouble)));
  EXPECT_FALSE(tree::leaf_equal(at::zeros({3}), at::zeros({1, 3})));
  EXPECT_FALSE(tree::leaf_equal(at::Tensor(), at::zeros({1})));
  EXPECT_FALSE(tree::equal(tree::tuple({1}), tree::list({1})));
  EXPECT_TRUE(tree::equal(tree::dict({{"a", 1}, {"b", 2}}), tree::dict({{"b", 2}, {"a", 1}})));
}

TEST(Tree, MisuseIsNamed) {
  c10::Dict<int64_t, int64_t> numbered;
  numbered.insert(1, 2);
  EXPECT_ERROR(tree::flatten(numbered, "kwargs"), ArgumentError,
               "kwargs: a dict has a key of kind Int; expected String");
  EXPECT_ERROR(tree::dict({{"a", 1}, {"a", 2}}), ArgumentError, "the key \"a\" twice");
  c10::impl::GenericList itself(c10::AnyType::get());
  itself.push_back(itself);
  EXPECT_ERROR(tree::flatten(itself), ArgumentError, "does it contain itself?");
  itself.clear();  // or the cycle would never be freed
}

}  // namespace
}  // namespace stagecraft
