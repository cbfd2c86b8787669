#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// A Python process that runs as long as the benchmark, so that its work can be timed in turns with
/// ours. It runs the script benchmarks/SCRIPT with the arguments. The script reads lines "CASE
/// ITERATIONS" and answers each with the seconds that it took (see pytorch_cases.py).
class PythonReference {
 public:
  PythonReference(const std::string& script, const std::vector<std::string>& arguments);
  ~PythonReference();
  PythonReference(const PythonReference&) = delete;
  PythonReference& operator=(const PythonReference&) = delete;

  /// One case of the script. The process must outlive the returned function, which throws Error if
  /// the process ended or does not answer within two minutes.
  Timed run(const std::string& name);

 private:
  std::string read_line();

  int child_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string unread_;
};

}  // namespace stagecraft::bench
