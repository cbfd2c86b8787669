#include "stagecraft/exported/float_nodes.h"

#include <algorithm>
#include <array>

namespace stagecraft::exported {

const FloatOperator* find_float_operator(std::string_view target) {
  static constexpr std::array<FloatOperator, 15> kOperators = {{
      {"_operator.add", "aten::add", "Tensor"},
      {"_operator.sub", "aten::sub", "Tensor"},
      {"_operator.mul", "aten::mul", "Tensor"},
      {"_operator.truediv", "aten::div", "Tensor"},
      {"_operator.floordiv", "aten::floor_divide", ""},
      {"_operator.mod", "aten::remainder", "Tensor"},
      {"_operator.pow", "aten::pow", "Tensor_Tensor"},
      {"_operator.neg", "aten::neg", ""},
      {"_operator.pos", "", ""},
      {"torch.sym_float", "", ""},
      {"torch._sym_sqrt", "aten::sqrt", ""},
      {"torch.sym_sqrt", "aten::sqrt", ""},
      {"torch.sym_max", "aten::maximum", ""},
      {"torch.sym_min", "aten::minimum", ""},
      {"math.sqrt", "aten::sqrt", ""},
  }};
  const auto* found = std::ranges::find(kOperators, target, &FloatOperator::target);
  return found == kOperators.end() ? nullptr : found;
}

}  // namespace stagecraft::exported
