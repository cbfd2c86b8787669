// One rank that trains until a fault ends it, as a program that a launcher starts:
//
//   fault_program SEED      a fault that the seed gives, at any action of any schedule
//   fault_program none      none: until something outside happens to it
//
// Prints, by the clock that all processes of a machine share:
//
//   READY rank                          the first step is done
//   STRUCK rank nanoseconds pid what    just before the fault
//   THREW rank nanoseconds type message
//
// (also into a file of its own in SC_FAULT_FOLDER, since launchers lose what dying processes say),
// and then ends by that exception, as a program does that catches none.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unistd.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/world/world.h"
#include "tests/runtime/fault_rank.h"

namespace stagecraft {
namespace {

long long now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  if (const char* const folder = std::getenv("SC_FAULT_FOLDER")) {
    const std::string path = std::string(folder) + "/" + std::to_string(getpid());
    if (std::FILE* const file = std::fopen(path.c_str(), "a")) {
      std::fprintf(file, "%s\n", line.c_str());
      std::fclose(file);
    }
  }
}

Fault fault_of(const std::string& seed, int32_t ranks) {
  if (seed == "none") return {.schedule = {"1F1B", ranks, 1, 2 * ranks}, .victim = -1};
  std::mt19937_64 random(std::strtoull(seed.c_str(), nullptr, 10));
  return random_fault(random, training_cases(ranks));
}

void run(Transport& transport, const Fault& fault) {
  const std::string rank = std::to_string(transport.rank().value());
  const auto threw = [&](const char* type, const std::exception& error) {
    print("THREW " + rank + " " + std::to_string(now()) + " " + type + " " + error.what());
  };
  try {
    train_until_fault(
        transport, fault,
        [&] {
          print("STRUCK " + rank + " " + std::to_string(now()) + " " + std::to_string(getpid()) +
                " " + to_string(fault));
        },
        [&] { print("READY " + rank); });
  } catch (const PeerError& error) {
    threw("PeerError", error);
    throw;
  } catch (const StageError& error) {
    threw("StageError", error);
    throw;
  } catch (const std::exception& error) {
    threw("another", error);
    throw;
  }
}

}  // namespace
}  // namespace stagecraft

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fault_program SEED|none\n");
    return 2;
  }
  auto world = stagecraft::World::from_environment(
      {.process = {.max_silence = std::chrono::seconds(1), .linger = std::chrono::seconds(1)},
       .join_timeout = std::chrono::seconds(30)});
  const auto fault = stagecraft::fault_of(argv[1], world.num_ranks());
  world.run([&](stagecraft::Transport& transport) { stagecraft::run(transport, fault); });
}
