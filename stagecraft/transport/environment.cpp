#include "stagecraft/transport/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>

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
                         "{}=\"{}\": expected a number from {} to {}", name, text, least, most);
  return number;
}

void read_addresses(JoinOptions& options) {
  options.token = find_variable("STAGECRAFT_TOKEN").value_or("");
  options.listen = find_variable("STAGECRAFT_LISTEN").value_or(options.listen);
  options.address = find_variable("STAGECRAFT_ADDRESS").value_or("");
}

}  // namespace stagecraft::detail

namespace stagecraft {
namespace {

std::string get_variable(const char* name) {
  const auto text = detail::find_variable(name);
  require<ArgumentError>(text.has_value(), "{} is not set: was this process started by torchrun?",
                         name);
  return *text;
}

template <typename T>
T get_number(const char* name) {
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(detail::number_in(name, get_variable(name), Limits::min(), Limits::max()));
}

}  // namespace

JoinOptions JoinOptions::from_environment() {
  using detail::find_variable;
  JoinOptions options;
  options.rank = Rank(get_number<int32_t>("RANK"));
  options.num_ranks = get_number<int32_t>("WORLD_SIZE");
  if (find_variable("LOCAL_RANK")) options.local_rank = get_number<int32_t>("LOCAL_RANK");
  options.host = get_variable("MASTER_ADDR");
  options.port = get_number<uint16_t>("MASTER_PORT");
  options.store_is_elsewhere = find_variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  options.job = find_variable("TORCHELASTIC_RUN_ID").value_or("") + "/" +
                find_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  detail::read_addresses(options);
  return options;
}

}  // namespace stagecraft
