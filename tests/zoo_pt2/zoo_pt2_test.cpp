#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph_text.h"
#include "tests/support/expect_error.h"
#include "tests/zoo_pt2/zoo.h"

namespace stagecraft {
namespace {

std::vector<ZooEntry> of_kind(bool is_refused) {
  std::vector<ZooEntry> zoo = read_zoo();
  std::erase_if(zoo,
                [&](const ZooEntry& entry) { return (entry.kind == "refused") != is_refused; });
  return zoo;
}

// Bit for bit what Python's eager model makes of the same inputs, at the example's shape and at
// others.
TEST(ZooPt2, OutputsAndGradientsAreThoseOfPython) {
  std::size_t cases = 0;
  for (const ZooEntry& entry : of_kind(false)) {
    for (const oracle::Case& one : oracle::read_case_file(zoo_path(entry.name + ".cases.pt"))) {
      for (const bool is_static : {false, true}) {
        if (is_static && (!entry.has_static || !one.get("static").toBool())) continue;
        const std::string file = entry.name + (is_static ? ".static.pt2" : ".pt2");
        try {
          const Graph graph = load_exported(zoo_path(file));
          EXPECT_EQ(compare_with_case(graph, one), "") << file;
        } catch (const std::exception& error) {
          ADD_FAILURE() << file << ": " << error.what();
        }
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 0U);
  std::cout << cases << " cases\n";
}

TEST(ZooPt2, TextIsTheSameGraph) {
  for (const ZooEntry& entry : of_kind(false)) {
    const Graph graph = load_exported(zoo_path(entry.name + ".pt2"));
    const std::string text = to_text(graph);
    const Graph again =
        parse_graph(text, [&](const std::string& name) { return graph.find_state(name)->tensor; });
    EXPECT_EQ(to_text(again), text) << entry.name;
    const oracle::Case one = oracle::read_case_file(zoo_path(entry.name + ".cases.pt")).front();
    EXPECT_EQ(compare_with_case(again, one), "") << entry.name;
  }
}

TEST(ZooPt2, SharedMemoryIsKnown) {
  for (const ZooEntry& entry : of_kind(false)) {
    const oracle::Case one = oracle::read_case_file(zoo_path(entry.name + ".cases.pt")).front();
    EXPECT_EQ(check_shared_memory(load_exported(zoo_path(entry.name + ".pt2")), arguments_of(one)),
              "")
        << entry.name;
  }
}

TEST(ZooPt2, RefusesByName) {
  for (const ZooEntry& entry : of_kind(true)) {
    EXPECT_ERROR(load_exported(zoo_path(entry.name + ".pt2")), GraphError, entry.names);
  }
}

}  // namespace
}  // namespace stagecraft
