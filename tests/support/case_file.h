#pragma once

#include <string>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

namespace stagecraft::oracle {

/// One case that a script wrote: values by name.
class Case {
 public:
  explicit Case(const c10::IValue& dict) : dict_(dict.toGenericDict()) {}

  bool has(const std::string& name) const { return dict_.contains(name); }
  /// Throws Error when there is none of that name.
  c10::IValue get(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const { return get(name).toTensor(); }
  int64_t integer(const std::string& name) const { return get(name).toInt(); }
  /// An undefined tensor where the script wrote None.
  at::Tensor tensor_or_none(const std::string& name) const;

 private:
  c10::impl::GenericDict dict_;
};

/// What torch.save has written.
c10::IValue read_pickle(const std::string& path);

/// The cases of a file: torch.save({"cases": [{...}, ...]}). Throws Error when it is missing.
std::vector<Case> read_case_file(const std::string& path);

}  // namespace stagecraft::oracle
