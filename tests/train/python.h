#pragma once

#include <string>

#include <gtest/gtest.h>

namespace stagecraft {

/// Runs a program in Python, where torch is imported, in this folder; expects that it succeeds.
void run_python(const std::string& program, const std::string& folder);

}  // namespace stagecraft
