// The `stagecraft` program: no torch here, so that it starts in milliseconds.

#include <csignal>
#include <exception>
#include <new>
#include <string_view>
#include <variant>

#include "cli/beside.h"
#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/python_tool.h"
#include "stagecraft/base/error.h"

namespace stagecraft::cli {

int run(const PrintCommand& command) {
  write_output("-", command.text);
  return kGood;
}

}  // namespace stagecraft::cli

using namespace stagecraft;
using namespace stagecraft::cli;

int main(int argc, char** argv) {
  // A reader may close the pipe early. write_output handles the error of the write.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const std::string_view first = argc > 1 ? argv[1] : "";
    if (first == "model") run_beside("stagecraft-model", argv + 2);
    if (first == "compile") run_python("compile", argv + 2);
    if (first == "train") run_beside("stagecraft-train", argv + 2);
    const Command command = parse_command_line(argc, argv);
    return std::visit([](const auto& chosen) { return run(chosen); }, command);
  } catch (const BadUsage& error) {
    print_error(error.what());
    return kBadUsage;
  } catch (const Error& error) {
    print_error(error.what());
    return kBadSchedule;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return kBadUsage;
}
