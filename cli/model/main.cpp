// The `stagecraft-model` program, which `stagecraft model` starts.

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "cli/failure.h"
#include "cli/model/options.h"
#include "cli/model/show.h"
#include "cli/output.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/plan/memory_need.h"

using namespace stagecraft;
using namespace stagecraft::cli;

int main(int argc, char** argv) {
  // A reader may close the pipe early. write_output handles the error of the write.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    auto asked = parse_model_options(std::vector<std::string>(argv + 1, argv + argc));
    const auto* text = std::get_if<std::string>(&asked);
    write_output("-", text != nullptr ? *text : show(std::get<ModelCommand>(asked)));
    return kGood;
  } catch (const DoesNotFit& error) {
    for (const std::string& line : error.lines()) print_error(line);
    return kFailed;
  } catch (const GraphError& error) {
    print_error(error.what());
    return kFailed;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory");
  } catch (const std::exception& error) {
    print_error(error.what());
  }
  return kBadUsage;
}
