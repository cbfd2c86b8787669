#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

namespace stagecraft {

/// A value that a tree carries as one leaf without looking inside, such as a block mask. Derive
/// from it, make instances with c10::make_intrusive, and put them into a tree with make_opaque.
/// Instances are shared between trees and threads: treat them as immutable.
class Opaque : public torch::CustomClassHolder {
 public:
  /// One line for error messages.
  virtual std::string describe() const = 0;
  /// Whether `other` may stand for this one. Identity unless overridden.
  virtual bool equals(const Opaque& other) const { return this == &other; }

  /// The largest number of microbatches that the leaf can be split into. Nothing, the default: the
  /// leaf cannot be split, and every microbatch gets it whole.
  virtual std::optional<int64_t> max_chunks() const { return std::nullopt; }
  /// Splits the leaf along its batch into exactly `chunks` leaves. The sizes must be those of
  /// at::tensor_split, because the tensors of the same tree are split that way: the first size %
  /// chunks chunks have one member more than the others. Called with 1 <= chunks <= max_chunks().
  virtual std::vector<c10::intrusive_ptr<Opaque>> split(int64_t /*chunks*/) const { return {}; }
  /// Merges the chunks of an output, in their order, into one leaf. Called on the first chunk.
  /// Null, the default: leaves of this class cannot be merged.
  virtual c10::intrusive_ptr<Opaque> merge(
      std::span<const c10::intrusive_ptr<Opaque>> /*chunks*/) const {
    return {};
  }
};

inline c10::IValue make_opaque(c10::intrusive_ptr<Opaque> leaf) {
  return c10::IValue::make_capsule(std::move(leaf));
}

/// The leaf as a T, or null if it is anything else.
template <typename T>
c10::intrusive_ptr<T> find_opaque(const c10::IValue& value) {
  if (!value.isCapsule()) return {};
  auto* found = dynamic_cast<T*>(value.toCapsule().get());
  return found == nullptr ? c10::intrusive_ptr<T>() : c10::intrusive_ptr<T>::reclaim_copy(found);
}

}  // namespace stagecraft
