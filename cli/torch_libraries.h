#pragma once

#include <string>

namespace stagecraft::cli {

/// Makes `program`, which is started next, find the libraries of torch: an installed program has no
/// path to them. Puts a folder at the front of LD_LIBRARY_PATH: the one in STAGECRAFT_TORCH_LIB if
/// that is set; none if the loader finds the libraries without help; otherwise the one of the torch
/// of STAGECRAFT_PYTHON, or of python3.
///
/// BadUsage when there is no torch, or when its minor version is not the one of the program.
void provide_torch_libraries(const std::string& program);

}  // namespace stagecraft::cli
