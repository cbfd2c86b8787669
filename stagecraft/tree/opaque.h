#pragma once

#include <string>
#include <utility>

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
