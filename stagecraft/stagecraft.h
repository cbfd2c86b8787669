#pragma once

// The one header a program includes. A part of the library alone: include that part's header.

#include "stagecraft/base/error.h"
#include "stagecraft/base/index.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/version.h"
