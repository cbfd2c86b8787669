#pragma once

#include <string>

namespace stagecraft::cli {

/// Sees to it that `program`, started after this, finds the libraries of torch: an installed one
/// does not know where they lie. The folder in STAGECRAFT_TORCH_LIB is taken where it is set;
/// otherwise nothing is done where the loader finds them by itself, and else those of
/// STAGECRAFT_PYTHON, or of python3, are. It goes to the front of LD_LIBRARY_PATH.
///
/// BadUsage when there are none, or when they are of another minor version than the program's.
void provide_torch_libraries(const std::string& program);

}  // namespace stagecraft::cli
