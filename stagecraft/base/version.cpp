#include "stagecraft/base/version.h"

namespace stagecraft {

std::string_view version() {
  return SC_VERSION;
}

}  // namespace stagecraft
