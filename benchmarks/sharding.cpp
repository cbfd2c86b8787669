// Updates of two sharded replicas of two ranks, four processes over gloo, against PyTorch's
// (FSDP2's fully_shard inside torch.distributed.pipelining): their time, and the most memory of a
// process. One thread inside operators everywhere; no rank is pinned, because there are more ranks
// than most machines of this kind have cores.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>

#include "benchmarks/harness.h"
#include "benchmarks/python_reference.h"
#include "benchmarks/request.h"
#include "cli/train/gpt.h"
#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/train/trainer.h"
#include "stagecraft/transport/world/world.h"

namespace {

using namespace stagecraft;
using Clock = std::chrono::steady_clock;

constexpr const char* kWorker = "--shard-worker";
constexpr int32_t kReplicas = 2;
constexpr int32_t kRanks = 2;
constexpr double kTimeGoal = 0.7;
constexpr double kMemoryGoal = 1.0;

/// The model and the batch that both sides train.
struct Setting {
  int64_t layers = 4;
  int64_t width = 256;
  int64_t context = 128;
  int32_t microbatches = 8;  // of a replica
  int64_t rows = 2;          // of a microbatch

  std::vector<std::string> words() const {
    return {std::to_string(layers), std::to_string(width), std::to_string(context),
            std::to_string(microbatches), std::to_string(rows)};
  }
};

constexpr Setting kTiny{.layers = 4, .width = 32, .context = 16, .microbatches = 4, .rows = 1};

/// A model and its name in rows. The goals are those of the first size.
struct Size {
  Setting setting;
  std::string words;
  bool has_goal = false;
};

std::vector<Size> sizes_of(bool is_quick) {
  if (is_quick) return {{kTiny, "4 x 32", true}};
  // Matrix products take nearly all time of an update of the first size, and a smaller part of the
  // second.
  return {{{}, "4 x 256", true}, {{.width = 64, .context = 32}, "4 x 64", false}};
}

/// A line of /proc/self/status, in bytes.
double status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::atof(line.c_str() + key.size() + 1) * 1024;
  }
  throw Error("/proc/self/status has no " + key);
}

/// Resets VmHWM, the peak memory of the process.
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

// A rank ----------------------------------------------------------------------------------------

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

class Training {
 public:
  Training(Transport& transport, const std::string& schedule, ShardKind kind,
           const Setting& setting) {
    const Gpt gpt({.layers = setting.layers,
                   .width = setting.width,
                   .heads = 4,
                   .context = setting.context,
                   .is_tied = false},
                  1);
    const int32_t stages = kRanks * get_schedule_kind(schedule).default_stages_per_rank;
    Split split;
    for (int32_t s = 1; s < stages; ++s) {
      split.points.push_back(
          {fmt::format("blocks.{}", setting.layers * s / stages), SplitPoint::kBeginning});
    }
    trainer_ = std::make_unique<Trainer>(gpt.cut(split, {.max_rows = setting.rows}), loss_of,
                                         TrainerOptions{.schedule = schedule,
                                                        .ranks = kRanks,
                                                        .threads_per_rank = 1,
                                                        .microbatches = setting.microbatches,
                                                        .clip = 0,
                                                        .transport = &transport,
                                                        .replicas = kReplicas,
                                                        .shard = kind});
    if (kind == ShardKind::kParameters) trainer_->release_other_stages();
    const int64_t all = setting.rows * setting.microbatches * kReplicas;
    ids_ = at::randint(0, 256, {all, setting.context}, at::kLong);
    targets_ = at::randint(0, 256, {all, setting.context}, at::kLong);
  }

  void update() { trainer_->step({ids_}, targets_); }

 private:
  std::unique_ptr<Trainer> trainer_;
  at::Tensor ids_;
  at::Tensor targets_;
};

/// Answers "update N" with seconds, "memory 1" with the most bytes of a process, "growth 1" with
/// the most bytes in updates, less those that it had before the model.
void serve(Transport& transport, const std::string& schedule, ShardKind kind,
           const Setting& setting) {
  const auto deadline = [] { return Deadline::after(std::chrono::minutes(5)); };
  {
    // A small model first, so that the pages of libraries are loaded and do not count as memory of
    // the model.
    Training small(transport, schedule, kind, kTiny);
    small.update();
  }
  const double before = status_bytes("VmRSS");
  Training training(transport, schedule, kind, setting);
  const double made = status_bytes("VmHWM");
  reset_peak();
  for (;;) {
    const std::string line = bench::next_request(transport);
    if (line == "end") return;
    const std::string name = line.substr(0, line.find(' '));
    double answer = 0;
    if (name == "update") {
      const int iterations = std::atoi(line.c_str() + name.size());
      transport.barrier(deadline());
      const auto begin = Clock::now();
      for (int i = 0; i < iterations; ++i) training.update();
      transport.barrier(deadline());
      answer = std::chrono::duration<double>(Clock::now() - begin).count();
    } else {
      const double peak = status_bytes("VmHWM");
      const double own = name == "growth" ? peak - before : std::max(peak, made);
      for (const c10::IValue& each : transport.all_gather(own, deadline())) {
        answer = std::max(answer, each.toDouble());
      }
    }
    if (transport.rank() == Rank(0)) {
      std::printf("%.9g\n", answer);
      std::fflush(stdout);
    }
  }
}

int run_worker(const std::vector<std::string>& words) {
  try {
    at::set_num_threads(1);
    const Setting setting{.layers = std::stoll(words[2]),
                          .width = std::stoll(words[3]),
                          .context = std::stoll(words[4]),
                          .microbatches = std::stoi(words[5]),
                          .rows = std::stoll(words[6])};
    World world = World::from_environment({.transport = "gloo"});
    world.run([&](Transport& transport) {
      serve(transport, words[0], find_shard_kind(words[1]).value(), setting);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

// The suite -------------------------------------------------------------------------------------

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) throw Error("this program does not find itself");
  path.resize(static_cast<std::size_t>(size));
  return path;
}

std::unique_ptr<bench::PythonReference> start_ours(const std::string& schedule, ShardKind kind,
                                                   const Setting& setting) {
  std::vector<std::string> words = {own_path(), kWorker, schedule, std::string(to_string(kind))};
  for (const std::string& word : setting.words()) words.push_back(word);
  words.insert(words.end(), {"--", "gloo", std::to_string(kReplicas * kRanks)});
  return std::make_unique<bench::PythonReference>("step_ranks.py", words);
}

void compare_memory(bench::Suite& suite, const std::string& schedule, bench::PythonReference& ours,
                    bench::PythonReference& theirs) {
  for (const std::string what : {"memory", "growth"}) {
    const std::string row = fmt::format(
        "{}, most {} of a process", schedule,
        what == "memory" ? "memory" : "memory in updates beyond what was before the model,");
    const double own = ours.run(what)(1);
    const double other = theirs.run(what)(1);
    suite.report({row, own / (1 << 20), "MiB"});
    suite.report({"  PyTorch", other / (1 << 20), "MiB"});
    // The goal applies to the whole memory, which a user pays for. The second row shows the part
    // that the model takes.
    suite.report({"  ratio", own / other, "x",
                  what == "memory" ? std::optional(kMemoryGoal) : std::nullopt});
  }
}

void compare_updates(bench::Suite& suite, const Size& size, const std::string& schedule) {
  std::vector<std::string> words = {"sharding_worker.py", schedule};
  for (const std::string& word : size.setting.words()) words.push_back(word);
  std::unique_ptr<bench::PythonReference> python;
  for (const ShardKind kind : {ShardKind::kParameters, ShardKind::kGradients, ShardKind::kNone}) {
    const std::string row = fmt::format("{}, {}, an update, 2 x 2 processes, sharded: {}",
                                        size.words, schedule, to_string(kind));
    if (!suite.wants(row)) continue;
    if (python == nullptr) {
      python = std::make_unique<bench::PythonReference>("vs_pytorch_ranks.py", words);
    }
    const bool has_goal = size.has_goal && kind == ShardKind::kParameters;
    const std::unique_ptr<bench::PythonReference> ours = start_ours(schedule, kind, size.setting);
    bench::Reference pytorch{.name = "PyTorch, FSDP2", .run = python->run("update")};
    if (has_goal) pytorch.goal = kTimeGoal;
    pytorch.informative = !has_goal;
    suite.compare(row, ours->run("update"), {pytorch});
    if (has_goal) compare_memory(suite, schedule, *ours, *python);
  }
}

void measure(bench::Suite& suite) {
  setenv("SC_BENCH_RANKS", std::to_string(kReplicas * kRanks).c_str(), 1);
  for (const Size& size : sizes_of(suite.quick())) {
    for (const std::string schedule : {"1F1B", "Interleaved1F1B"}) {
      compare_updates(suite, size, schedule);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == kWorker) return run_worker({argv + 2, argv + argc});
  return bench::run_suite("sharding", argc, argv, measure);
}
