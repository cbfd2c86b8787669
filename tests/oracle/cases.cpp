#include "tests/oracle/cases.h"

#include <fmt/format.h>

namespace stagecraft::oracle {

std::vector<Case> read_cases(const std::string& kind) {
  return read_case_file(fmt::format("{}/{}.pt", SC_ORACLE_CASES, kind));
}

}  // namespace stagecraft::oracle
