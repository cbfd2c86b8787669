#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "tests/exported/bounded_child.h"
#include "tests/exported/mutate.h"
#include "tests/exported/small_archive.h"

namespace stagecraft {
namespace {

constexpr std::size_t kMemory = std::size_t{1} << 30;  // beyond what the program has anyway
constexpr unsigned kSeconds = 60;
constexpr uint64_t kBatch = 250;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* wanted = std::getenv(variable);
  return wanted == nullptr ? otherwise : std::strtoull(wanted, nullptr, 10);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The archives that tests write themselves, and small ones of the zoo where that has been
/// exported.
std::vector<std::vector<ZipMember>> archives() {
  std::vector<std::vector<ZipMember>> result = {SmallArchive::rich().members(),
                                                SmallArchive::linear().members()};
  const char* folder = std::getenv("SC_FUZZ_ZOO");
  for (const char* name : {"cond", "tied_weights", "sizes_divided", "dropout", "nested_inputs",
                           "sizes_guarded", "autocast"}) {
    const std::filesystem::path path =
        std::filesystem::path(folder == nullptr ? SC_ZOO_FOLDER : folder) /
        (std::string(name) + ".pt2");
    if (std::filesystem::exists(path)) result.push_back(read_zip(read_file(path)));
  }
  return result;
}

/// The engine warns of what it finds in an example.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

enum class Outcome : uint8_t { kRefused, kLoaded, kRan, kCount };

void expect_path(const std::string& message, const std::string& path) {
  if (message.starts_with(path)) return;
  throw std::runtime_error("the file is not named: " + message);
}

Outcome try_archive(const std::string& path) {
  std::vector<Graph> graphs;
  Arguments example{{at::ones({3, 4})}, {}};
  try {
    const ExportedArchive archive(path);
    for (const std::string& program : archive.programs()) {
      try {
        graphs.push_back(archive.graph(program));
        archive.warnings(program);
        archive.torch_version(program);
        example = archive.example(program);
      } catch (const Error& error) {
        expect_path(error.what(), path);
      }
    }
    for (const std::string& name : archive.extra_files()) archive.extra_file(name);
  } catch (const FileError& error) {
    expect_path(error.what(), path);
  }
  Outcome outcome = graphs.empty() ? Outcome::kRefused : Outcome::kLoaded;
  for (const Graph& graph : graphs) {
    const std::string text = to_text(graph);
    const Graph again =
        parse_graph(text, [&](const std::string& name) { return graph.find_state(name)->tensor; });
    if (to_text(again) != text) throw std::runtime_error("the text is another graph's: " + text);
    try {
      GraphProgram(graph).run(example.args, example.kwargs);
      outcome = Outcome::kRan;
    } catch (const std::exception&) {
      // The engine may refuse what a graph asks for.
    }
  }
  return outcome;
}

// A seed that failed is run alone by SC_FUZZ_SEED=seed SC_FUZZ_PT2=1.
TEST(FuzzPt2, NothingCrashesOrHangsOrGrows) {
  at::set_num_threads(1);
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  const std::vector<std::vector<ZipMember>> originals = archives();
  const uint64_t first = number_from("SC_FUZZ_SEED", 0);
  const uint64_t last = first + number_from("SC_FUZZ_PT2", 1000);
  std::array<uint64_t, static_cast<std::size_t>(Outcome::kCount)> outcomes{};
  std::size_t memory = 0;
  std::cout << "seeds " << first << " to " << last << ", " << originals.size() << " archives\n";
  const TempFile file("");
  const TempFile counts("");
  for (uint64_t seed = first; seed < last;) {
    const uint64_t end = std::min(seed + kBatch, last);
    const ChildResult result = run_bounded(kMemory, kSeconds, [&](ChildNotes& notes) {
      std::array<uint64_t, 3> found{};
      for (uint64_t each = seed; each < end; ++each) {
        notes.begin(each);
        std::mt19937_64 random(each);
        // Most of them are of the first, which has the most in it.
        const std::size_t which = random() % 2 == 0 ? 0 : random() % originals.size();
        file.rewrite(mutate(originals[which], random));
        ++found.at(static_cast<std::size_t>(try_archive(file.path())));
      }
      counts.rewrite(fmt::format("{} {} {}", found[0], found[1], found[2]));
    });
    memory = std::max(memory, result.peak_memory);
    if (result.is_done) {
      std::ifstream in(counts.path());
      for (uint64_t& outcome : outcomes) {
        uint64_t found = 0;
        in >> found;
        outcome += found;
      }
      seed = end;
    } else {
      ADD_FAILURE() << "seed " << result.step << ": " << result.what;
      seed = result.step + 1;
    }
  }
  std::cout << outcomes[0] << " refused, " << outcomes[1] << " loaded, " << outcomes[2]
            << " loaded and ran; at most " << (memory >> 20) << " MiB in memory\n";
  EXPECT_GT(outcomes[0], 0U);
  EXPECT_GT(outcomes[2], 0U);
}

}  // namespace
}  // namespace stagecraft
