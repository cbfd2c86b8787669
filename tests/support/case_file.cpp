#include "tests/support/case_file.h"

#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "stagecraft/base/error.h"

namespace stagecraft::oracle {

c10::IValue Case::get(const std::string& name) const {
  const auto found = dict_.find(name);
  if (found == dict_.end()) throw Error(fmt::format("the case has no {}", name));
  return found->value();
}

at::Tensor Case::tensor_or_none(const std::string& name) const {
  const auto value = get(name);
  return value.isNone() ? at::Tensor() : value.toTensor();
}

c10::IValue read_pickle(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(fmt::format("cannot read {}; run the test that writes it first", path));
  return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}});
}

std::vector<Case> read_case_file(const std::string& path) {
  const Case all(read_pickle(path));
  std::vector<Case> cases;
  for (const auto& dict : all.get("cases").toListRef()) cases.emplace_back(dict);
  return cases;
}

}  // namespace stagecraft::oracle
