#include "stagecraft/graph/capture/element_access.h"

#include <algorithm>
#include <array>

#include "stagecraft/graph/op_types.h"

namespace stagecraft {

namespace {

// This is a list, because schemas do not tell such operators from item(), which reads an element.
constexpr std::array<std::string_view, 26> kMetadataOperators = {
    "aten::is_same_size",   "aten::result_type",
    "aten::can_cast",       "aten::is_floating_point",
    "aten::is_complex",     "aten::is_signed",
    "aten::is_neg",         "aten::is_conj",
    "aten::is_inference",   "aten::is_pinned",
    "aten::is_set_to",      "aten::size",
    "aten::stride",         "aten::sym_size",
    "aten::sym_stride",     "aten::sym_numel",
    "aten::is_leaf",        "aten::output_nr",
    "aten::retains_grad",   "aten::_version",
    "aten::dense_dim",      "aten::sparse_dim",
    "aten::is_coalesced",   "aten::sym_storage_offset",
    "aten::_is_zerotensor", "aten::cudnn_is_acceptable",
};

constexpr std::array<std::string_view, 6> kUnwrittenResults = {
    "aten::empty",     "aten::empty_like",        "aten::empty_strided",
    "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"};

}  // namespace

bool reads_back(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Argument& argument) {
    return takes_tensors(argument.real_type());
  };
  return std::ranges::any_of(schema.arguments(), is_tensor) &&
         !std::ranges::all_of(schema.returns(), is_tensor);
}

bool reads_metadata(std::string_view op) {
  return std::ranges::count(kMetadataOperators, op) > 0;
}

bool reads_elements(std::string_view op) {
  // empty_like and similar operators read only the shape of their argument.
  return !op.ends_with("_like") && !op.starts_with("aten::new_");
}

bool returns_unwritten(std::string_view op) {
  return std::ranges::count(kUnwrittenResults, op) > 0;
}

}  // namespace stagecraft
