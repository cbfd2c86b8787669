#include "tests/train/python.h"

#include <cstdio>
#include <fstream>

namespace stagecraft {

void run_python(const std::string& program, const std::string& folder) {
  const std::string path = folder + "/program.py";
  std::ofstream(path) << "import torch\n" << program;
  const std::string command = "cd '" + folder + "' && '" SC_PYTHON "' program.py 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  EXPECT_EQ(::pclose(pipe), 0) << output;
}

}  // namespace stagecraft
