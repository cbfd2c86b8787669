// The `stagecraft` program: no torch here, so that it starts in milliseconds.

#include <string>

#include <CLI/CLI.hpp>

#include "stagecraft/base/version.h"

namespace {

constexpr int kBadUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Stagecraft: pipeline parallelism on libtorch.", "stagecraft");
  app.set_version_flag("--version", "stagecraft " + std::string(stagecraft::version()));
  app.footer("This version has no subcommands yet; the library is used from C++ (see docs/).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::cerr << "stagecraft: " << error.what() << '\n';
    return kBadUsage;
  }
  std::cout << app.help();
  return 0;
}
