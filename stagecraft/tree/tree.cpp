#include "stagecraft/tree/tree.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree_match.h"

namespace stagecraft::tree {
namespace {

using Kind = TreeSpec::Kind;

class Flattener {
 public:
  explicit Flattener(std::vector<c10::IValue>& leaves) : leaves_(leaves) {}

  TreeSpec walk(const c10::IValue& value, int depth) {
    require<ArgumentError>(depth <= kMaxTreeDepth,
                           "nested deeper than {} (does it contain itself?)", kMaxTreeDepth);
    if (value.isTuple()) return walk_tuple(value.toTupleRef(), depth);
    if (value.isList()) {
      const auto list = value.toListRef();
      std::vector<TreeSpec> children;
      children.reserve(list.size());
      for (const auto& element : list) children.push_back(walk(element, depth + 1));
      return TreeSpec::list(std::move(children), {{}, value.toList().elementType()});
    }
    if (value.isGenericDict()) return walk_dict(value.toGenericDict(), depth);
    leaves_.push_back(value);
    return TreeSpec::leaf();
  }

 private:
  TreeSpec walk_tuple(const c10::ivalue::Tuple& tuple, int depth) {
    const auto& elements = tuple.elements();
    std::vector<TreeSpec> children;
    children.reserve(elements.size());
    for (const auto& element : elements) children.push_back(walk(element, depth + 1));
    return TreeSpec::tuple(std::move(children));
  }

  TreeSpec walk_dict(const c10::impl::GenericDict& dict, int depth) {
    std::vector<c10::IValue> keys;
    std::vector<TreeSpec> children;
    keys.reserve(dict.size());
    children.reserve(dict.size());
    for (const auto& entry : dict) {
      require<ArgumentError>(entry.key().isString(), "a dict has a key of kind {}; expected String",
                             entry.key().tagKind());
      keys.push_back(entry.key());
      children.push_back(walk(entry.value(), depth + 1));
    }
    return TreeSpec::dict_of(std::move(keys), std::move(children),
                             {dict.keyType(), dict.valueType()});
  }

  std::vector<c10::IValue>& leaves_;
};

// The type of the elements if they are all tensors or all scalars of one kind, otherwise Any.
// (IValue::type() of a container would fit that one value only, because it contains the shapes of
// its tensors.)
c10::TypePtr common_type(const std::vector<c10::IValue>& elements) {
  const auto all = [&](auto is_kind) {
    return std::all_of(elements.begin(), elements.end(), is_kind);
  };
  if (elements.empty()) return c10::AnyType::get();
  if (all([](const auto& e) { return e.isTensor(); })) return c10::TensorType::get();
  if (all([](const auto& e) { return e.isInt(); })) return c10::IntType::get();
  if (all([](const auto& e) { return e.isDouble(); })) return c10::FloatType::get();
  if (all([](const auto& e) { return e.isBool(); })) return c10::BoolType::get();
  if (all([](const auto& e) { return e.isString(); })) return c10::StringType::get();
  return c10::AnyType::get();
}

bool conforms(const c10::IValue& value, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::AnyType) return true;
  if (value.isTensor()) {
    // IValue::type() of a tensor would contain its shape, and takes a microsecond.
    const auto& any_tensor = c10::TensorType::get();
    return &type == any_tensor.get() || any_tensor->isSubtypeOf(type);
  }
  return value.type()->isSubtypeOf(type);
}

// `wanted` if all elements have it, otherwise their common type.
c10::TypePtr element_type(const c10::TypePtr& wanted, const std::vector<c10::IValue>& elements) {
  if (!wanted) return common_type(elements);
  for (const auto& element : elements) {
    if (!conforms(element, *wanted)) return common_type(elements);
  }
  return wanted;
}

c10::IValue make_list(const c10::TypePtr& wanted, std::vector<c10::IValue> elements) {
  c10::impl::GenericList list(element_type(wanted, elements));
  list.reserve(elements.size());
  for (auto& element : elements) list.push_back(std::move(element));
  return list;
}

c10::IValue make_dict(const TreeSpec& spec, std::vector<c10::IValue> values) {
  const auto& origin = spec.origin();
  c10::impl::GenericDict dict(origin.key_type ? origin.key_type : c10::StringType::get(),
                              element_type(origin.element_type, values));
  dict.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    dict.insert(spec.key_value(i), std::move(values[i]));
  }
  return dict;
}

// Takes the leaves from `leaf` on and moves it past them.
c10::IValue build(const TreeSpec& spec, c10::IValue*& leaf) {
  if (spec.is_leaf()) return std::move(*leaf++);
  std::vector<c10::IValue> children;
  children.reserve(spec.children().size());
  for (const auto& child : spec.children()) children.push_back(build(child, leaf));
  switch (spec.kind()) {
    case Kind::kList:
      return make_list(spec.origin().element_type, std::move(children));
    case Kind::kDict:
      return make_dict(spec, std::move(children));
    default:
      return c10::ivalue::Tuple::create(std::move(children));
  }
}

// Collects the leaves of `value` if it has the structure of `spec`, and returns whether it has.
bool collect(const TreeSpec& spec, const c10::IValue& value, Sequences sequences,
             std::vector<c10::IValue>& leaves) {
  const auto children = spec.children();
  const auto collect_all = [&](const auto& elements) {
    if (elements.size() != children.size()) return false;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (!collect(children[i], elements[i], sequences, leaves)) return false;
    }
    return true;
  };
  const bool is_sequence = spec.kind() == Kind::kTuple || spec.kind() == Kind::kList;
  if (value.isTuple()) {
    if (spec.kind() != Kind::kTuple && !(is_sequence && sequences == Sequences::kAlike))
      return false;
    return collect_all(value.toTupleRef().elements());
  }
  if (value.isList()) {
    if (spec.kind() != Kind::kList && !(is_sequence && sequences == Sequences::kAlike))
      return false;
    return collect_all(value.toListRef());
  }
  if (value.isGenericDict()) {
    if (spec.kind() != Kind::kDict) return false;
    const auto dict = value.toGenericDict();
    if (dict.size() != children.size()) return false;
    auto next = dict.begin();
    for (std::size_t i = 0; i < children.size(); ++i, ++next) {
      auto entry = next;
      // Nearly always the keys come in the same order; otherwise look the key up.
      if (!next->key().isString() || next->key().toStringRef() != spec.key(i)) {
        entry = dict.find(spec.key_value(i));
        if (entry == dict.end()) return false;
      }
      if (!collect(children[i], entry->value(), sequences, leaves)) return false;
    }
    return true;
  }
  if (!spec.is_leaf()) return false;
  leaves.push_back(value);
  return true;
}

bool has_elements_here(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_meta();
}

bool tensor_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (!a.defined() || !b.defined()) return false;
  // Sparse, nested and meta tensors are equal only if they are the same tensor, because at::equal
  // does not compare the elements of all of them.
  if (!has_elements_here(a) || !has_elements_here(b)) return false;
  if (a.scalar_type() != b.scalar_type() || a.device() != b.device() || a.sizes() != b.sizes()) {
    return false;
  }
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a, b);
  // Floating-point dtypes of eight bits have no comparison operators in torch. float32 represents
  // all of their values.
  const bool is_small = a.element_size() == 1;
  const at::Tensor x = is_small ? a.to(at::kFloat) : a;
  const at::Tensor y = is_small ? b.to(at::kFloat) : b;
  return at::equal(x, y) ||
         x.eq(y).logical_or(at::isnan(x).logical_and(at::isnan(y))).all().item<bool>();
}

bool number_equal(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

}  // namespace

c10::IValue tuple(std::vector<c10::IValue> elements) {
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue list(std::vector<c10::IValue> elements) {
  return make_list({}, std::move(elements));
}

c10::IValue dict(std::vector<std::pair<std::string, c10::IValue>> entries) {
  std::vector<std::string> keys;
  std::vector<c10::IValue> values;
  for (auto& entry : entries) {
    keys.push_back(std::move(entry.first));
    values.push_back(std::move(entry.second));
  }
  return make_dict(TreeSpec::dict(keys, std::vector<TreeSpec>(keys.size())), std::move(values));
}

Flat flatten(const c10::IValue& tree, std::string_view root) {
  Flat flat;
  try {
    flat.spec = Flattener(flat.leaves).walk(tree, 0);
  } catch (const ArgumentError& error) {
    throw ArgumentError(fmt::format("{}: {}", root, error.what()));
  }
  return flat;
}

c10::IValue unflatten(const TreeSpec& spec, std::vector<c10::IValue> leaves) {
  return unflatten(spec, std::span<c10::IValue>(leaves));
}

c10::IValue unflatten(const TreeSpec& spec, std::span<c10::IValue> leaves) {
  require<ArgumentError>(leaves.size() == spec.num_leaves(),
                         "the tree has {} leaves, got {} values for them", spec.num_leaves(),
                         leaves.size());
  auto* leaf = leaves.data();
  return build(spec, leaf);
}

std::vector<c10::IValue> flatten_as(const TreeSpec& spec, const c10::IValue& tree,
                                    std::string_view root, Sequences sequences) {
  std::vector<c10::IValue> found;
  found.reserve(spec.num_leaves());
  if (!collect(spec, tree, sequences, found)) {
    match(spec, flatten(tree, root).spec, root, sequences);  // throws: it names the difference
    throw MetadataError(fmt::format("{}: the structure differs from the expected one", root));
  }
  return found;
}

std::vector<c10::IValue> leaves(const c10::IValue& tree) {
  return flatten(tree).leaves;
}

c10::IValue map(const c10::IValue& tree, const MapFn& fn) {
  Flat flat = flatten(tree);
  for (auto& leaf : flat.leaves) leaf = fn(leaf);
  return unflatten(flat.spec, std::move(flat.leaves));
}

c10::IValue map_with_path(const c10::IValue& tree, std::string_view root, const PathFn& fn) {
  Flat flat = flatten(tree, root);
  for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
    flat.leaves[i] = fn(flat.spec.leaf_path(i, root), flat.leaves[i]);
  }
  return unflatten(flat.spec, std::move(flat.leaves));
}

std::vector<std::pair<c10::IValue, c10::IValue>> zip(const c10::IValue& a, const c10::IValue& b,
                                                     std::string_view root) {
  Flat left = flatten(a, root);
  auto right = flatten_as(left.spec, b, root);
  std::vector<std::pair<c10::IValue, c10::IValue>> pairs;
  pairs.reserve(right.size());
  for (std::size_t i = 0; i < right.size(); ++i) {
    pairs.emplace_back(std::move(left.leaves[i]), std::move(right[i]));
  }
  return pairs;
}

bool leaf_equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isTensor()) return tensor_equal(a.toTensor(), b.toTensor());
  if (a.isDouble()) return number_equal(a.toDouble(), b.toDouble());
  if (a.isComplexDouble()) {
    const auto x = a.toComplexDouble();
    const auto y = b.toComplexDouble();
    return number_equal(x.real(), y.real()) && number_equal(x.imag(), y.imag());
  }
  const auto opaque_a = find_opaque<Opaque>(a);
  const auto opaque_b = find_opaque<Opaque>(b);
  if (opaque_a && opaque_b) return opaque_a->equals(*opaque_b);
  return a.is(b) || (!a.isCapsule() && a == b);
}

bool equal(const c10::IValue& a, const c10::IValue& b) {
  const Flat left = flatten(a);
  std::vector<c10::IValue> right;
  if (!collect(left.spec, b, Sequences::kExact, right)) return false;
  return std::equal(left.leaves.begin(), left.leaves.end(), right.begin(), leaf_equal);
}

}  // namespace stagecraft::tree
