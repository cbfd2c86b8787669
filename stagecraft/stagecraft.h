#pragma once

// The one header a program includes. For one part of the library alone, include that part's header.

#include "stagecraft/base/error.h"
#include "stagecraft/base/index.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/version.h"

#ifdef STAGECRAFT_TORCH
#include "stagecraft/attention/block_mask.h"
#include "stagecraft/attention/block_mask_split.h"
#include "stagecraft/attention/block_mask_text.h"
#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/flex_attention.h"
#include "stagecraft/attention/mask_fns.h"
#include "stagecraft/microbatch/chunk_spec.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tensor_meta.h"
#include "stagecraft/tree/tree.h"
#include "stagecraft/tree/tree_text.h"
#endif
