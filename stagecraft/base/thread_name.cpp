#include "stagecraft/base/thread_name.h"

#include <pthread.h>

namespace stagecraft::detail {

void name_thread([[maybe_unused]] const std::string& name) {
#ifdef __linux__
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
#endif
}

}  // namespace stagecraft::detail
