#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the process with a message unless `holds`. For preconditions that a header states
/// (REQUIRES): a violation is a bug of the calling code. Bad input of a user is one of our errors
/// (check.h), never an assertion. Assertions are on unless the library is configured with
/// STAGECRAFT_ASSERTIONS=OFF. Then `holds` is not evaluated.
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
