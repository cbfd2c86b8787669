#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

namespace stagecraft {

/// Values by position.
using Args = std::vector<c10::IValue>;

/// Values by name, in the order in which they were given; no name twice.
///
///   Kwargs kwargs = {{"mask", mask}, {"causal", true}};
class Kwargs {
 public:
  using Entry = std::pair<std::string, c10::IValue>;

  Kwargs() = default;
  /// Throws ArgumentError if a name appears twice.
  Kwargs(std::initializer_list<Entry> entries);
  explicit Kwargs(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

  /// Null if there is no such name.
  const c10::IValue* find(std::string_view name) const;
  /// Throws ArgumentError, which lists the names, if there is no such name.
  const c10::IValue& get(std::string_view name) const;
  /// Replaces the value of that name, or adds it at the end.
  void set(std::string name, c10::IValue value);

 private:
  std::vector<Entry> entries_;
};

/// The arguments of one call of a model.
struct Arguments {
  Args args;
  Kwargs kwargs;
};

}  // namespace stagecraft
