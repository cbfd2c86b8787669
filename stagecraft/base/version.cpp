#include "stagecraft/base/version.h"

#define SC_TEXT_OF(number) #number
#define SC_DOTTED(major, minor, patch) SC_TEXT_OF(major) "." SC_TEXT_OF(minor) "." SC_TEXT_OF(patch)

namespace stagecraft {

std::string_view version() {
  return SC_DOTTED(STAGECRAFT_VERSION_MAJOR, STAGECRAFT_VERSION_MINOR, STAGECRAFT_VERSION_PATCH);
}

}  // namespace stagecraft
