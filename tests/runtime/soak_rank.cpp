#include "tests/runtime/soak_rank.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <malloc.h>

#include "tests/runtime/harness.h"

namespace stagecraft {
namespace {

constexpr int64_t kWidth = 64;
// Until engines have the buffers that they need: Open MPI's still grow in the first few hundred.
constexpr int64_t kWarmUp = 300;
constexpr int64_t kSampled = 10;
constexpr int64_t kTolerated = 12 * 1024;  // KB; until all buffers are there it goes on growing

int64_t resident_kilobytes() {
  malloc_trim(0);  // what is free does not count
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long pages = 0;
  const int read = std::fscanf(file, "%*d %ld", &pages);
  std::fclose(file);
  return read == 1 ? pages * (sysconf(_SC_PAGESIZE) / 1024) : -1;
}

int64_t open_files() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return std::distance(begin(folder), end(folder));
}

}  // namespace

int64_t soak_steps() {
  const char* const text = std::getenv("SC_SOAK_STEPS");
  return text == nullptr ? 150 : std::strtoll(text, nullptr, 10);
}

std::string soak(Transport& transport, int64_t steps, uint64_t seed) {
  const ScheduleCase shape{"1F1B", transport.num_ranks(), 1, 4};
  const ScheduleSource source = shape.source();
  const TestModel model = chain_model(shape.stages(), kWidth);
  Runner runner(
      transport, stages_on(model, source.placement(), transport.rank()),
      runner_options(model, {.source = source, .timeout = std::chrono::seconds(20), .seed = 7}));
  std::mt19937_64 random(seed);  // the same on all ranks
  std::vector<int64_t> memory;   // every few steps
  int64_t files = 0;
  for (int64_t step = 0; step < kWarmUp + steps; ++step) {
    // Values fit inside a frame or not; a few are so large that a thread of their own sends them.
    // The number of microbatches changes, too.
    const auto rows = static_cast<int64_t>((step % 16 == 0 ? 2000 : 0) + 1 + random() % 600);
    const auto microbatches = static_cast<int32_t>(2 + random() % 6);
    const Microbatches batch = random_batch(microbatches, rows * microbatches, kWidth, random());
    runner.step(part_of(batch, source.placement(), transport.rank()),
                {.microbatches = microbatches, .everywhere = step % 7 == 0});
    take_grads(model.bodies);
    if (step + 1 == kWarmUp) files = open_files();
    if (step >= kWarmUp && step % kSampled == 0) memory.push_back(resident_kilobytes());
  }
  // Buffers come and go with the shapes: what counts is whether the later half of the steps has
  // more than the earlier half ever had.
  const auto middle = memory.begin() + static_cast<std::ptrdiff_t>(memory.size() / 2);
  const int64_t before = *std::max_element(memory.begin(), middle);
  std::nth_element(middle, middle + (memory.end() - middle) / 2, memory.end());
  const int64_t grown = *(middle + (memory.end() - middle) / 2) - before;
  std::printf(
      "rank %d: %lld steps, memory up to %lld KB in the first half, %+lld KB in the second, "
      "%lld files\n",
      transport.rank().value(), static_cast<long long>(steps), static_cast<long long>(before),
      static_cast<long long>(grown), static_cast<long long>(files));
  if (grown > kTolerated) return fmt::format("{} KB more than in the first half", grown);
  if (open_files() != files) return fmt::format("{} files open, {} before", open_files(), files);
  return {};
}

}  // namespace stagecraft
