// The main function of tests that mpirun starts: all processes run all tests, the first one says
// so, the others say what fails on them, and the result is that of all.

#include <cstdio>
#include <exception>
#include <string>

#include <gmock/gmock.h>

#include "tests/support/mpi_ranks.h"

namespace {

class OnlyFailures final : public testing::EmptyTestEventListener {
 public:
  explicit OnlyFailures(int rank) : rank_(rank) {}

  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("process %d: %s: %s:%d: %s\n", rank_, test_.c_str(),
                result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                result.message());
    std::fflush(stdout);
  }

 private:
  int rank_;
  std::string test_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  try {
    const auto rank = stagecraft::MpiRanks::job_rank().value();
    if (rank != 0) {
      auto& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new OnlyFailures(rank));
    }
    const bool failed = stagecraft::MpiRanks::is_any(RUN_ALL_TESTS() != 0);
    stagecraft::MpiRanks::leave();
    return failed ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
