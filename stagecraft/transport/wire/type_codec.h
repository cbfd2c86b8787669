#pragma once

#include <ATen/core/jit_type_base.h>

#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {

/// The element type of a list or dict. A type that does not occur in value trees becomes Any.
void write_type(ByteWriter& out, const c10::TypePtr& type);
/// MetadataError for invalid bytes.
c10::TypePtr read_type(ByteReader& in);

}  // namespace stagecraft::detail
