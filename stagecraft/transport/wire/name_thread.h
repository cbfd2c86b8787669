#pragma once

#include <string>

#include <pthread.h>

#include "stagecraft/base/index.h"

namespace stagecraft::detail {

/// Names the calling thread, for debuggers: "sc out 3".
inline void name_thread(const std::string& what, Rank rank) {
#ifdef __linux__
  pthread_setname_np(pthread_self(), (what + " " + to_string(rank)).substr(0, 15).c_str());
#else
  static_cast<void>(what);
  static_cast<void>(rank);
#endif
}

}  // namespace stagecraft::detail
