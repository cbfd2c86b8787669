// Worlds as a launcher, or none, suggests them.

#include "stagecraft/transport/world/world.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/world/launcher.h"
#include "tests/support/expect_error.h"
#include "tests/support/gloo_ranks.h"
#include "tests/transport/traffic.h"

namespace stagecraft {
namespace {

using detail::find_launch;
using detail::find_store;
using detail::Launch;

/// An environment without any launcher's variables but these.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_NODELIST",
                             "SLURM_STEP_NUM_NODES",
                             "HYDI_CONTROL_FD",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
};

/// What torchrun sets for one of two processes.
std::map<std::string, std::string> torchrun_variables(int32_t rank, uint16_t port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

TEST(Launcher, ReadsWhatEachOneSets) {
  const Environment none({});
  EXPECT_FALSE(find_launch().has_value());
  struct Case {
    std::map<std::string, std::string> variables;
    Launch::Kind kind;
  };
  for (const Case& c : std::vector<Case>{
           {{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}, Launch::Kind::kTorchrun},
           {{{"OMPI_COMM_WORLD_RANK", "3"},
             {"OMPI_COMM_WORLD_SIZE", "4"},
             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
            Launch::Kind::kOpenMpi},
           {{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}},
            Launch::Kind::kSlurm},
           {{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}},
            Launch::Kind::kMpich}}) {
    const Environment environment(c.variables);
    const auto launch = find_launch();
    ASSERT_TRUE(launch.has_value());
    EXPECT_EQ(launch->kind, c.kind);
    EXPECT_EQ(launch->rank, 3);
    EXPECT_EQ(launch->num_ranks, 4);
    EXPECT_EQ(launch->local_rank, 1);
  }
}

// Within srun, torchrun has started the process; a batch script alone is no rank.
TEST(Launcher, TheInnermostOneCounts) {
  const std::map<std::string, std::string> batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
  const Environment script(batch);
  EXPECT_FALSE(find_launch().has_value());
  auto both = batch;
  both.insert({{"SLURM_STEP_NUM_TASKS", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  const Environment environment(both);
  EXPECT_EQ(find_launch()->kind, Launch::Kind::kTorchrun);
  // MPICH's mpirun has started its helpers, one a node, with srun.
  const Environment hydra({{"SLURM_PROCID", "0"},
                           {"SLURM_STEP_NUM_TASKS", "1"},
                           {"HYDI_CONTROL_FD", "9"},
                           {"PMI_RANK", "2"},
                           {"PMI_SIZE", "4"}});
  EXPECT_EQ(find_launch()->kind, Launch::Kind::kMpich);
  EXPECT_EQ(find_launch()->rank, 2);
  const Environment pmi(
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(find_launch()->kind, Launch::Kind::kSlurm);
}

TEST(Launcher, RefusesNumbersThatAreNone) {
  const Environment words({{"RANK", "first"}, {"WORLD_SIZE", "4"}});
  EXPECT_ERROR(find_launch(), ArgumentError,
               "RANK=\"first\": expected a number from 0 to 2147483647");
  const Environment negative({{"PMI_RANK", "-1"}, {"PMI_SIZE", "4"}});
  EXPECT_ERROR(find_launch(), ArgumentError,
               "PMI_RANK=\"-1\": expected a number from 0 to 2147483647");
  const Environment beyond({{"RANK", "4"}, {"WORLD_SIZE", "4"}});
  EXPECT_ERROR(find_launch(), ArgumentError, "RANK=4, but WORLD_SIZE=4");
}

TEST(Launcher, SlurmStepsMeetOnTheirFirstHost) {
  EXPECT_EQ(detail::first_host("node7"), "node7");
  EXPECT_EQ(detail::first_host("node7,node8"), "node7");
  EXPECT_EQ(detail::first_host("node[003-005,9],other"), "node003");
  EXPECT_EQ(detail::first_host("node[12,14-15]"), "node12");
  EXPECT_EQ(detail::first_host("rack[1-2]-gpu,x"), "rack1-gpu");
  EXPECT_ERROR(detail::first_host("node[1"), ArgumentError, "is not a list of hosts");
  const Environment step({{"SLURM_STEP_NODELIST", "n[4-5]"}, {"SLURM_JOB_ID", "123"}});
  const auto place = find_store({Launch::Kind::kSlurm});
  EXPECT_EQ(place.host, "n4");
  EXPECT_EQ(place.port, 20000 + 123 * 31);
  setenv("SLURM_STEP_ID", "2", 1);
  EXPECT_EQ(find_store({Launch::Kind::kSlurm}).port, 20000 + 123 * 31 + 2);
  setenv("SLURM_STEP_NUM_NODES", "1", 1);
  EXPECT_EQ(find_store({Launch::Kind::kSlurm}).host, "127.0.0.1");
  const Environment told({{"MASTER_ADDR", "there"}, {"MASTER_PORT", "77"}});
  EXPECT_EQ(find_store({Launch::Kind::kSlurm}).host, "there");
  EXPECT_EQ(find_store({Launch::Kind::kOpenMpi}).port, 77);
  const Environment nothing({});
  EXPECT_ERROR(find_store({Launch::Kind::kSlurm}), ArgumentError,
               "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set");
  const Environment wrong({{"MASTER_ADDR", "here"}, {"MASTER_PORT", "99999"}});
  EXPECT_ERROR(find_store({Launch::Kind::kMpich}), ArgumentError, "MASTER_PORT=\"99999\"");
}

TEST(World, IsThreadsWhereNothingHasLaunchedIt) {
  const Environment none({});
  World world = World::from_environment({.local_ranks = 3});
  EXPECT_TRUE(world.is_local());
  EXPECT_EQ(world.num_ranks(), 3);
  std::atomic<int> ranks = 0;
  world.run([&](Transport& transport) {
    transport.barrier(soon());
    ranks += 1 << transport.rank().value();
  });
  EXPECT_EQ(ranks, 7);
  EXPECT_ERROR(world.transport(), ArgumentError, "ranks are threads, and World::run");
  EXPECT_EQ(World::from_environment({.ranks = 2, .local_ranks = 3}).num_ranks(), 2);
  EXPECT_EQ(World::from_environment().num_ranks(), 1);
}

TEST(World, SaysWhatIsMissing) {
  const Environment none({});
  EXPECT_ERROR(
      World::from_environment({.transport = "gloo"}), ArgumentError,
      "a world over gloo needs a launcher, but this process was started without one: use torchrun");
  EXPECT_ERROR(World::from_environment({.ranks = 0}), ArgumentError,
               "expected at least one rank, got 0");
  EXPECT_ERROR(World::from_environment({.transport = "tcp"}), ArgumentError,
               "expected auto, local, gloo, nccl or mpi for a transport, got 'tcp'");
  const Environment two({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_ERROR(World::from_environment({.ranks = 3}), ArgumentError,
               "expected 3 ranks, but torchrun has started 2");
  EXPECT_ERROR(World::from_environment({.transport = "local"}), ArgumentError,
               "torchrun has started 2 processes");
}

// Each way in which the same two processes may have been started.
TEST(World, IsProcessesWhereALauncherHasStartedThem) {
  for (const std::string launcher : {"torchrun", "srun"}) {
    SCOPED_TRACE(launcher);
    const uint16_t port = free_port();
    Processes processes(2, [&](int32_t i) {
      const std::string rank = std::to_string(i);
      std::map<std::string, std::string> variables = {
          {"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}};
      if (launcher == "srun") {
        variables = {
            {"SLURM_PROCID", rank}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", rank}};
      }
      variables["MASTER_ADDR"] = "127.0.0.1";
      variables["MASTER_PORT"] = std::to_string(port);
      const Environment environment(variables);
      World world = World::from_environment();
      EXPECT_EQ(world.transport_name(), "gloo");
      EXPECT_EQ(world.rank(), Rank(i));
      EXPECT_EQ(world.local_rank(), i);
      EXPECT_EQ(world.num_ranks(), 2);
      int calls = 0;
      world.run([&](Transport& transport) {
        EXPECT_EQ(&transport, &world.transport());
        EXPECT_EQ(transport.all_gather(int64_t{i}, soon())[1].toInt(), 1);
        ++calls;
      });
      EXPECT_EQ(calls, 1);
    });
    for (const auto& end : processes.wait()) {
      EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
    }
  }
}

TEST(World, ARankThatThrowsIsNamedOnTheOthers) {
  const uint16_t port = free_port();
  Processes processes(2, [&](int32_t i) {
    const Environment environment(torchrun_variables(i, port));
    World world = World::from_environment();
    try {
      world.run([&](Transport& transport) {
        if (i == 1) throw std::runtime_error("no space left");
        transport.barrier(soon());
      });
    } catch (const std::exception&) {
      EXPECT_ERROR(world.transport(), ArgumentError,
                   "the world ended when rank " + std::to_string(i));
      throw;
    }
  });
  const auto ends = processes.wait();
  EXPECT_EQ(ends[0].type, "PeerError");
  EXPECT_EQ(ends[0].message, "rank 1: no space left");
  EXPECT_EQ(ends[1].message, "no space left");
}

// One after another, and after one that failed. Where rank 0 keeps the store, each world has a port
// of its own.
TEST(World, AnotherCanBeMadeInTheSameProcess) {
  const std::vector<uint16_t> ports = {free_port(), free_port(), free_port()};
  Processes processes(2, [&](int32_t i) {
    for (std::size_t round = 0; round < ports.size(); ++round) {
      const Environment environment(torchrun_variables(i, ports[round]));
      World world = World::from_environment();
      const bool fails = round == 1;
      const auto body = [&](Transport& transport) {
        transport.barrier(soon());
        if (i == 1 && fails) throw std::runtime_error("once");
        if (fails) transport.barrier(soon());
      };
      if (fails) {
        EXPECT_ANY_THROW(world.run(body));
      } else {
        world.run(body);
      }
    }
    const Environment none({});
    World local = World::from_environment({.local_ranks = 2});
    local.run([](Transport& transport) { transport.barrier(soon()); });
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
}

TEST(World, FactsAreCompared) {
  const uint16_t port = free_port();
  Processes processes(2, [&](int32_t i) {
    const Environment environment(torchrun_variables(i, port));
    World::from_environment({.fingerprint = {{"schedule", i == 0 ? "1F1B" : "GPipe"}}});
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.type, "MetadataError");
    EXPECT_THAT(end.message, testing::HasSubstr("schedule is 1F1B on rank 0, GPipe on rank 1"));
  }
}

}  // namespace
}  // namespace stagecraft
