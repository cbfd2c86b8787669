#include "stagecraft/graph/capture/trace_place.h"

#include <cstddef>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/names.h"

namespace stagecraft {

void TracePlace::enter_scope(const std::string& name) {
  require<ArgumentError>(is_name(name), "scope: expected letters, digits, '_' and '.', got '{}'",
                         name);
  scopes_.push_back(scopes_.empty() ? name : scopes_.back() + "." + name);
}

void TracePlace::note_state(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  last_module_ = dot == std::string_view::npos ? std::string() : std::string(name.substr(0, dot));
}

void TracePlace::fail(const std::string& message) const {
  std::string place = scopes_.empty() ? "" : fmt::format(" in {}", scopes_.back());
  if (!last_module_) {
    place += " before the first module that reads a parameter";
  } else {
    place += last_module_->empty() ? std::string(" in or after the model itself")
                                   : fmt::format(" in or after module {}", *last_module_);
  }
  throw CaptureError(fmt::format("{}{}: {}", subject_, place, message));
}

}  // namespace stagecraft
