#include "stagecraft/transport/c10d/environment.h"

#include <charconv>
#include <cstdlib>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {

std::optional<std::string> find_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

int64_t number_in(const char* name, const std::string& text, int64_t least, int64_t most) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  require<ArgumentError>(problem == std::errc() && stop == end && number >= least && number <= most,
                         "{}=\"{}\" is no number that it can be", name, text);
  return number;
}

void read_addresses(ProcessWorldOptions& options) {
  options.token = find_variable("STAGECRAFT_TOKEN").value_or("");
  options.listen = find_variable("STAGECRAFT_LISTEN").value_or(options.listen);
  options.address = find_variable("STAGECRAFT_ADDRESS").value_or("");
}

}  // namespace stagecraft::detail
