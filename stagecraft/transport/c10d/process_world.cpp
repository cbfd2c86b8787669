#include "stagecraft/transport/c10d/process_world.h"

#include <limits>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/c10d/c10d_engine.h"
#include "stagecraft/transport/c10d/environment.h"
#include "stagecraft/transport/c10d/join.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft {
namespace {

using detail::find_variable;

template <typename T>
T get_number(const char* name) {
  const auto text = find_variable(name);
  if (!text)
    throw ArgumentError(fmt::format("{} is not set: is this a process of torchrun?", name));
  using Limits = std::numeric_limits<T>;
  return static_cast<T>(detail::number_in(name, *text, Limits::min(), Limits::max()));
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
  detail::read_addresses(options);
  return options;
}

ProcessWorld::ProcessWorld(const ProcessWorldOptions& options)
    : rank_(options.rank), num_ranks_(options.num_ranks), local_rank_(options.local_rank) {
  transport_ = std::make_unique<detail::WireTransport>(detail::join(options), options.transport);
}

ProcessWorld::ProcessWorld(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           const ProcessTransportOptions& options) {
  auto engine = detail::make_c10d_engine(group);
  rank_ = engine->rank();
  num_ranks_ = engine->num_ranks();
  transport_ = std::make_unique<detail::WireTransport>(std::move(engine), options);
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
