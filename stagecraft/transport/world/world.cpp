#include "stagecraft/transport/world/world.h"

#include <array>
#include <exception>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/c10d/environment.h"
#include "stagecraft/transport/mpi/mpi_world.h"
#include "stagecraft/transport/nccl/nccl_world.h"
#include "stagecraft/transport/world/launcher.h"

namespace stagecraft {
namespace {

using detail::Launch;

constexpr std::array<const char*, 5> kNames = {"auto", "local", "gloo", "nccl", "mpi"};

TransportKind choose(TransportKind asked, const std::optional<Launch>& launch) {
  if (asked != TransportKind::kAuto) return asked;
  if (!launch) return TransportKind::kLocal;
  const bool is_mpi =
      launch->kind == Launch::Kind::kOpenMpi || launch->kind == Launch::Kind::kMpich;
  return is_mpi ? TransportKind::kMpi : TransportKind::kGloo;
}

void check_number(const WorldOptions& options, const Launch& launch) {
  require<ArgumentError>(options.ranks.value_or(launch.num_ranks) == launch.num_ranks,
                         "{} ranks are asked for, and {} has started {}",
                         options.ranks.value_or(launch.num_ranks), detail::name_of(launch.kind),
                         launch.num_ranks);
}

// Where the ranks meet, whoever has started them.
ProcessWorldOptions meeting_of(const Launch& launch) {
  if (launch.kind == Launch::Kind::kTorchrun) return ProcessWorldOptions::from_environment();
  ProcessWorldOptions options;
  options.rank = Rank(launch.rank);
  options.num_ranks = launch.num_ranks;
  options.local_rank = launch.local_rank;
  const detail::MeetingPlace place = detail::find_meeting_place(launch.kind);
  options.host = place.host;
  options.port = place.port;
  detail::read_addresses(options);
  return options;
}

std::unique_ptr<Transport> join(const Launch& launch, TransportKind kind,
                                const WorldOptions& options, c10::Device& device) {
  if (kind == TransportKind::kMpi) {
    return MpiWorld({.facts = options.facts,
                     .join_timeout = options.join_timeout,
                     .transport = options.process})
        .release();
  }
  ProcessWorldOptions process = meeting_of(launch);
  process.facts = options.facts;
  process.facts.emplace_back("transport", to_string(kind));
  process.join_timeout = options.join_timeout;
  process.transport = options.process;
  if (kind != TransportKind::kNccl) return ProcessWorld(process).release();
  NcclWorld nccl(process);
  device = nccl.device();
  return nccl.release();
}

}  // namespace

TransportKind parse_transport_kind(const std::string& word) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (word == kNames[i]) return static_cast<TransportKind>(i);
  }
  throw ArgumentError(
      fmt::format("expected auto, local, gloo, nccl or mpi for a transport, got '{}'", word));
}

std::string to_string(TransportKind kind) {
  return kNames.at(static_cast<std::size_t>(kind));
}

World World::from_environment(const WorldOptions& options) {
  require<ArgumentError>(options.ranks.value_or(options.local_ranks) >= 1,
                         "expected at least one rank, got {}",
                         options.ranks.value_or(options.local_ranks));
  const auto launch = detail::find_launch();
  World world;
  world.kind_ = choose(options.transport, launch);
  if (world.is_local()) {
    require<ArgumentError>(!launch || launch->num_ranks == 1,
                           "{} has started {} processes, each of which would have all ranks as "
                           "threads: leave the transport to it, or start one process",
                           launch ? detail::name_of(launch->kind) : "",
                           launch ? launch->num_ranks : 1);
    world.num_ranks_ = options.ranks.value_or(options.local_ranks);
    world.local_ = std::make_unique<LocalWorld>(world.num_ranks_, options.local);
    return world;
  }
  require<ArgumentError>(launch.has_value(),
                         "a world over {} needs a launcher, and none has started this process: "
                         "torchrun --no-python --nproc-per-node 2 PROGRAM, mpirun -np 2 PROGRAM or "
                         "srun -n 2 PROGRAM",
                         to_string(world.kind_));
  check_number(options, *launch);
  world.end_ = join(*launch, world.kind_, options, world.device_);
  require<ArgumentError>(
      world.end_->num_ranks() == launch->num_ranks && world.end_->rank().value() == launch->rank,
      "{} says that this is rank {} of {}, and {} that it is rank {} of {}: is it the launcher of "
      "that MPI?",
      detail::name_of(launch->kind), launch->rank, launch->num_ranks, to_string(world.kind_),
      world.end_->rank().value(), world.end_->num_ranks());
  world.rank_ = world.end_->rank();
  world.num_ranks_ = world.end_->num_ranks();
  world.local_rank_ = launch->local_rank;
  return world;
}

World::~World() = default;
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;

Transport& World::transport() {
  require<ArgumentError>(local_ == nullptr,
                         "World: ranks are threads here, and each gets its end from World::run");
  require<ArgumentError>(end_ != nullptr, "World: it ended when rank {} threw in World::run",
                         rank_.value());
  return *end_;
}

void World::run(const std::function<void(Transport&)>& body) {
  require<ArgumentError>(body != nullptr, "World::run needs a function to call");
  if (local_) return local_->run(body);
  transport();  // it may be over
  try {
    body(*end_);
  } catch (...) {
    if (end_->abort_reason() == nullptr) {
      end_->abort({rank_,
                   fmt::format("rank {}: {}", rank_.value(), describe(std::current_exception())),
                   std::current_exception()});
    }
    // Until the others have heard it: if nobody catches this, the process is about to end.
    end_.reset();
    throw;
  }
}

}  // namespace stagecraft
