#include "stagecraft/exported/operator_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/grouped_mm.h"

namespace stagecraft::exported {

namespace {

/// An operator of ours that replaces an operator that exists in Python only.
struct Replacement {
  std::string_view path;
  const char* ours;
};
constexpr std::array<Replacement, 2> kReplacements = {{
    // The marker of torch.distributed.pipelining.
    {"pippy._pipe_split.default", kSplitOperator},
    // The experts of Hugging Face's mixtures of experts, since transformers 5.
    {"transformers.grouped_mm_fallback.default", kGroupedMmOperator},
}};

/// The library that registers the operators of a namespace.
struct Library {
  std::string_view space;
  std::string_view name;
  std::string_view advice;
};
constexpr std::string_view kTransformersAdvice =
    "transformers has it in Python only: export the model with "
    "experts_implementation=\"batched_mm\" and attn_implementation=\"sdpa\" or \"eager\"";
constexpr std::string_view kTorchAdvice =
    "export the model with the version of torch that runs it, or run_decompositions() it";
constexpr std::string_view kGeneralAdvice =
    "If the library has a part in C++, load it first: dlopen in a program, LD_PRELOAD for the "
    "tools. If it defines the operator in Python only, register one of this name in C++ "
    "(TORCH_LIBRARY), or export the model without it";
constexpr std::array<Library, 9> kLibraries = {{
    {"aten", "torch, of a different version", kTorchAdvice},
    {"prims", "torch, of a different version", kTorchAdvice},
    {"quantized_decomposed", "torch.ao.quantization", kGeneralAdvice},
    {"transformers", "transformers of Hugging Face", kTransformersAdvice},
    {"transformers_msa", "transformers of Hugging Face", kTransformersAdvice},
    {"torchvision", "torchvision", kGeneralAdvice},
    {"torchao", "torchao", kGeneralAdvice},
    {"fbgemm", "FBGEMM", kGeneralAdvice},
    {"xformers", "xFormers", kGeneralAdvice},
}};

}  // namespace

c10::OperatorName operator_of(const std::string& target) {
  constexpr std::string_view kOps = "torch.ops.";
  require<GraphError>(target.starts_with(kOps),
                      "there is no operator for {}, which is a function of Python. "
                      "Export the model without it",
                      target);
  const std::string path = target.substr(kOps.size());
  const auto* replaced = std::ranges::find(kReplacements, path, &Replacement::path);
  if (replaced != kReplacements.end()) return {replaced->ours, ""};
  const std::size_t first = path.find('.');
  const std::size_t second = first == std::string::npos ? first : path.find('.', first + 1);
  require<GraphError>(second != std::string::npos, "expected namespace.name.overload, got '{}'",
                      path);
  std::string overload = path.substr(second + 1);
  if (overload == "default") overload.clear();
  return {path.substr(0, first) + "::" + path.substr(first + 1, second - first - 1), overload};
}

void throw_missing_operator(const c10::OperatorName& op) {
  const std::string space = op.name.substr(0, op.name.find("::"));
  const auto* known = std::ranges::find(kLibraries, space, &Library::space);
  const bool is_known = known != kLibraries.end();
  const std::string library =
      is_known ? std::string(known->name) : fmt::format("the library that registers {}::*", space);
  throw GraphError(fmt::format("this process has no operator {}. It comes from {}. {}",
                               c10::toString(op), library,
                               is_known ? known->advice : kGeneralAdvice));
}

}  // namespace stagecraft::exported
