// The `stagecraft-train` program, which `stagecraft train` starts.

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "cli/failure.h"
#include "cli/output.h"
#include "cli/train/options.h"
#include "cli/train/processes.h"
#include "cli/train/session.h"
#include "stagecraft/base/error.h"

using namespace stagecraft;
using namespace stagecraft::cli;

int main(int argc, char** argv) {
  // A reader may close the pipe early. write_output handles the error of the write.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    auto asked = parse_train_options(std::vector<std::string>(argv + 1, argv + argc));
    if (const auto* text = std::get_if<std::string>(&asked)) {
      write_output("-", *text);
      return kGood;
    }
    auto& command = std::get<TrainCommand>(asked);
    if (command.processes > 0) return train_on_processes(command, argc, argv);
    return train(std::move(command));
  } catch (const BadUsage& error) {
    print_error(error.what());
    return kBadUsage;
  } catch (const FileError& error) {
    print_error(error.what());
    return kBadUsage;
  } catch (const Error& error) {
    print_error(error.what());
    return kFailed;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return kFailed;
}
