#include "stagecraft/transport/c10d/process_world.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/c10d/c10d_engine.h"
#include "stagecraft/transport/c10d/join.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft {
namespace {

std::optional<std::string> find_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

template <typename T>
T get_number(const char* name) {
  const auto text = find_variable(name);
  if (!text)
    throw ArgumentError(fmt::format("{} is not set: is this a process of torchrun?", name));
  T number{};
  const char* const end = text->data() + text->size();
  const auto [stop, problem] = std::from_chars(text->data(), end, number);
  if (problem != std::errc() || stop != end) {
    throw ArgumentError(fmt::format("{}=\"{}\" is no number that it can be", name, *text));
  }
  return number;
}

std::unique_ptr<Transport> make_transport(std::unique_ptr<detail::Engine> engine,
                                          const ProcessTransportOptions& options) {
  return std::make_unique<detail::WireTransport>(
      std::move(engine), detail::WireOptions{.use_checksums = options.use_checksums,
                                             .max_silence = options.max_silence,
                                             .linger = options.linger});
}

}  // namespace

ProcessWorldOptions ProcessWorldOptions::from_environment() {
  ProcessWorldOptions options;
  options.rank = Rank(get_number<int32_t>("RANK"));
  options.num_ranks = get_number<int32_t>("WORLD_SIZE");
  if (find_variable("LOCAL_RANK")) options.local_rank = get_number<int32_t>("LOCAL_RANK");
  const auto host = find_variable("MASTER_ADDR");
  require<ArgumentError>(host.has_value(),
                         "MASTER_ADDR is not set: is this a process of torchrun?");
  options.host = *host;
  options.port = get_number<uint16_t>("MASTER_PORT");
  options.store_is_elsewhere = find_variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  options.job = find_variable("TORCHELASTIC_RUN_ID").value_or("") + "/" +
                find_variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  options.token = find_variable("STAGECRAFT_TOKEN").value_or("");
  options.listen = find_variable("STAGECRAFT_LISTEN").value_or(options.listen);
  options.address = find_variable("STAGECRAFT_ADDRESS").value_or("");
  return options;
}

ProcessWorld::ProcessWorld(const ProcessWorldOptions& options)
    : rank_(options.rank), num_ranks_(options.num_ranks), local_rank_(options.local_rank) {
  transport_ = make_transport(detail::join(options), options.transport);
}

ProcessWorld::ProcessWorld(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           const ProcessTransportOptions& options) {
  auto engine = detail::make_c10d_engine(group);
  rank_ = engine->rank();
  num_ranks_ = engine->num_ranks();
  transport_ = make_transport(std::move(engine), options);
}

ProcessWorld::~ProcessWorld() = default;
ProcessWorld::ProcessWorld(ProcessWorld&&) noexcept = default;
ProcessWorld& ProcessWorld::operator=(ProcessWorld&&) noexcept = default;

Transport& ProcessWorld::transport() {
  require<ArgumentError>(transport_ != nullptr, "ProcessWorld: the end of rank {} was released",
                         rank_.value());
  return *transport_;
}

std::unique_ptr<Transport> ProcessWorld::release() {
  transport();
  return std::move(transport_);
}

}  // namespace stagecraft
