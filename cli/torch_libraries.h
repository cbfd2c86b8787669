#pragma once

#include <string>

namespace stagecraft::cli {

/// Makes `program`, which is started next, find the libraries of torch: an installed program has no
/// path to them. Puts a folder at the front of LD_LIBRARY_PATH: the one in STAGECRAFT_TORCH_LIB if
/// it is set. Otherwise none if the loader finds the libraries without it, or else that of the
/// torch of STAGECRAFT_PYTHON or python3.
///
/// BadUsage when there is no torch, or when its minor version is not the one of the program.
void provide_torch_libraries(const std::string& program);

}  // namespace stagecraft::cli
