#include "stagecraft/transport/world/world.h"

#include <exception>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/world/back_ends.h"
#include "stagecraft/transport/world/launcher.h"

namespace stagecraft {
namespace {

using detail::Launch;

void check_number(const WorldOptions& options, const Launch& launch) {
  require<ArgumentError>(options.ranks.value_or(launch.num_ranks) == launch.num_ranks,
                         "expected {} ranks, but {} has started {}",
                         options.ranks.value_or(launch.num_ranks), detail::name_of(launch.kind),
                         launch.num_ranks);
}

// The options for a back end. MPI knows rank and size itself. Ranks of the others join at c10d's
// store.
JoinOptions join_options(const Launch& launch, const detail::BackEnd& back_end,
                         const WorldOptions& world) {
  JoinOptions options;
  if (back_end.uses_store) options = detail::find_store(launch);
  options.fingerprint = world.fingerprint;
  // Ranks with different options can meet at one store, over gloo and NCCL. The comparison names
  // the difference.
  options.fingerprint.emplace_back("transport", back_end.name);
  options.join_timeout = world.join_timeout;
  options.transport = world.process;
  return options;
}

}  // namespace

World World::from_environment(const WorldOptions& options) {
  require<ArgumentError>(options.ranks.value_or(options.local_ranks) >= 1,
                         "expected at least one rank, got {}",
                         options.ranks.value_or(options.local_ranks));
  const auto launch = detail::find_launch();
  World world;
  world.name_ = detail::choose_transport(options.transport, launch);
  const detail::BackEnd* const back_end = detail::find_back_end(world.name_);
  if (back_end == nullptr) {
    require<ArgumentError>(!launch || launch->num_ranks == 1,
                           "{} has started {} processes, and a local world would run all ranks in "
                           "each of them: use transport auto, or start one process",
                           launch ? detail::name_of(launch->kind) : "",
                           launch ? launch->num_ranks : 1);
    world.num_ranks_ = options.ranks.value_or(options.local_ranks);
    world.local_ = std::make_unique<LocalWorld>(world.num_ranks_, options.local);
    return world;
  }
  require<ArgumentError>(
      launch.has_value(),
      "a world over {} needs a launcher, but this process was started without one: use torchrun "
      "--no-python --nproc-per-node 2 PROGRAM, mpirun -np 2 PROGRAM or "
      "srun -n 2 PROGRAM",
      world.name_);
  check_number(options, *launch);
  JoinOptions join = join_options(*launch, *back_end, options);
  world.end_ = back_end->join(join);
  world.device_ = join.device.value_or(c10::kCPU);
  require<ArgumentError>(
      world.end_->num_ranks() == launch->num_ranks && world.end_->rank().value() == launch->rank,
      "{} says that this is rank {} of {}, but {} says rank {} of {}: was the job started by the "
      "launcher of that MPI?",
      detail::name_of(launch->kind), launch->rank, launch->num_ranks, world.name_,
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
                         "World: ranks are threads, and World::run passes each its transport");
  require<ArgumentError>(end_ != nullptr, "World: the world ended when rank {} threw in World::run",
                         rank_.value());
  return *end_;
}

void World::run(const std::function<void(Transport&)>& body) {
  require<ArgumentError>(body != nullptr, "World::run: expected a function, got an empty one");
  if (local_) return local_->run(body);
  transport();  // it may be over
  try {
    body(*end_);
  } catch (...) {
    if (end_->abort_reason() == nullptr) end_->abort(reason_for(rank_, std::current_exception()));
    // Waits until the peers have received the reason: if this exception is not caught, the process
    // is about to end.
    end_.reset();
    throw;
  }
}

}  // namespace stagecraft
