#pragma once

#include "stagecraft/attention/block_mask.h"
#include "tests/oracle/cases.h"

namespace stagecraft::oracle {

/// The block mask that mask_recipes.py builds from the same recipe.
c10::intrusive_ptr<BlockMask> build_mask(const c10::IValue& recipe);

/// Expects the tensors, the dense mask, the sparsity and the lengths that torch has.
void expect_mask(const BlockMask& mask, const c10::IValue& tensors);

}  // namespace stagecraft::oracle
