#pragma once

namespace stagecraft::cli {

/// Replaces this process by `python -m stagecraft.MODULE` with the arguments from `argv` on. The
/// Python is that of STAGECRAFT_PYTHON, or python3. The package is searched next to this program:
/// in a build folder, in an installation, in a wheel. BadUsage if the package is not found, or the
/// Python cannot be started.
[[noreturn]] void run_python(const char* module, char** argv);

}  // namespace stagecraft::cli
