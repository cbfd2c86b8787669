#pragma once

#include <string>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

namespace stagecraft::oracle {

/// One case that write_cases.py wrote: values by name.
class Case {
 public:
  explicit Case(const c10::IValue& dict) : dict_(dict.toGenericDict()) {}

  /// Throws Error when there is none of that name.
  c10::IValue get(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const { return get(name).toTensor(); }
  int64_t integer(const std::string& name) const { return get(name).toInt(); }
  /// An undefined tensor where the script wrote None.
  at::Tensor tensor_or_none(const std::string& name) const;

 private:
  c10::impl::GenericDict dict_;
};

/// The cases of one kind ("split", "merge", ...). Throws Error when the file is missing.
std::vector<Case> read_cases(const std::string& kind);

}  // namespace stagecraft::oracle
