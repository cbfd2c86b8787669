#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the process, with a message, unless `holds`. For preconditions that a header states: a bug
/// of the calling code, never bad input of a user, which is one of our errors (check.h). On
/// unless the library is configured with STAGECRAFT_ASSERTIONS=OFF; `holds` is not evaluated then.
///
///   SC_ASSERT(size >= 0);
#ifdef STAGECRAFT_ASSERTIONS
#define SC_ASSERT(holds)                                                                  \
  do {                                                                                    \
    if (!(holds)) [[unlikely]] {                                                          \
      std::fprintf(stderr, "%s:%d: failed: SC_ASSERT(%s)\n", __FILE__, __LINE__, #holds); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
#else
#define SC_ASSERT(holds) static_cast<void>(sizeof((holds) ? 1 : 0))
#endif
