#include "cli/python_tool.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "cli/failure.h"

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

/// The places of the package, relative to the folder of this program: in a build folder, in an
/// installation, in a wheel.
constexpr std::array<const char*, 3> kPlaces = {"../python", "../share/stagecraft/python", "../.."};

std::string environment_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

void run_python(const char* module, char** argv) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path main = fs::path("stagecraft") / module / "__main__.py";
  std::string folder;
  for (const char* place : kPlaces) {
    const fs::path candidate = program.parent_path() / place;
    if (folder.empty() && fs::exists(candidate / main, error)) {
      folder = fs::weakly_canonical(candidate, error).string();
    }
  }
  if (folder.empty()) {
    throw BadUsage(fmt::format("expected {} next to {}: this build has no Python package",  //
                               main.string(), program.string()));
  }
  const std::string others = environment_or("PYTHONPATH", "");
  ::setenv("PYTHONPATH", (others.empty() ? folder : folder + ":" + others).c_str(), 1);
  ::setenv("STAGECRAFT_PROGRAM", program.c_str(), 1);
  const std::string python = environment_or("STAGECRAFT_PYTHON", "python3");
  const std::string name = std::string("stagecraft.") + module;
  std::vector<std::string> words = {python, "-m", name};
  for (; *argv != nullptr; ++argv) words.emplace_back(*argv);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::signal(SIGPIPE, SIG_DFL);
  ::execvp(python.c_str(), arguments.data());
  throw BadUsage(
      fmt::format("cannot start {}: {}; name a Python that has torch in STAGECRAFT_PYTHON", python,
                  std::strerror(errno)));
}

}  // namespace stagecraft::cli
