#pragma once

namespace stagecraft::cli {

/// Becomes `python -m stagecraft.MODULE` with the arguments from `argv` on: the Python is that of
/// STAGECRAFT_PYTHON, or python3. The package is found next to this program: in a build folder, in
/// an installation, in a wheel. BadUsage when it is not there, or the Python cannot be started.
[[noreturn]] void run_python(const char* module, char** argv);

}  // namespace stagecraft::cli
