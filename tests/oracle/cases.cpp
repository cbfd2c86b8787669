#include "tests/oracle/cases.h"

namespace stagecraft::oracle {

std::vector<Case> read_cases(const std::string& kind) {
  return read_case_file(std::string(SC_ORACLE_CASES) + "/" + kind + ".pt");
}

}  // namespace stagecraft::oracle
