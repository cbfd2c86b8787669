// Checks every saved case of a folder, in a process that has never seen the models: a line for
// each, "NAME: ok" or what differs.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/partition/saved_case.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
      if (entry.path().extension() == ".pipe") names.push_back(entry.path().stem());
    }
    std::ranges::sort(names);
    for (const std::string& name : names) {
      const std::string problem = stagecraft::check_case(argv[1], name);
      std::printf("%s: %s\n", name.c_str(), problem.empty() ? "ok" : problem.c_str());
    }
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
