#include "stagecraft/transport/mpi/mpi_world.h"

#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/mpi/mpi_join.h"
#include "stagecraft/transport/mpi/mpi_progress.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft {
namespace {

const detail::MpiFacts& facts_of_job(std::chrono::nanoseconds timeout) {
  const auto wait = timeout;
  return detail::MpiProgress::get(Deadline::after(wait)).facts();
}

}  // namespace

MpiWorld::MpiWorld(const MpiWorldOptions& options) {
  auto joined = detail::join_mpi(options);
  rank_ = joined.engine->rank();
  num_ranks_ = joined.engine->num_ranks();
  local_rank_ = joined.local_rank;
  transport_ = std::make_unique<detail::WireTransport>(std::move(joined.engine), options.transport);
}

MpiWorld::~MpiWorld() = default;
MpiWorld::MpiWorld(MpiWorld&&) noexcept = default;
MpiWorld& MpiWorld::operator=(MpiWorld&&) noexcept = default;

Transport& MpiWorld::transport() {
  require<ArgumentError>(transport_ != nullptr, "MpiWorld: the end of rank {} was released",
                         rank_.value());
  return *transport_;
}

std::unique_ptr<Transport> MpiWorld::release() {
  transport();
  return std::move(transport_);
}

Rank MpiWorld::job_rank(std::chrono::nanoseconds timeout) {
  return Rank(facts_of_job(timeout).rank);
}

int32_t MpiWorld::job_size(std::chrono::nanoseconds timeout) {
  return facts_of_job(timeout).num_ranks;
}

}  // namespace stagecraft
