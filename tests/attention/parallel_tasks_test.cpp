#include "stagecraft/attention/parallel_tasks.h"

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

namespace stagecraft::detail {
namespace {

class ParallelTasks : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_P(ParallelTasks, EveryTaskRunsOnce) {
  std::vector<std::atomic<int>> runs(100);
  run_tasks(100, true, [&](const std::function<int64_t()>& next) {
    for (int64_t i = next(); i >= 0; i = next()) ++runs[static_cast<std::size_t>(i)];
  });
  for (const auto& n : runs) EXPECT_EQ(n, 1);
}

TEST_P(ParallelTasks, FewTasksStayOnTheCaller) {
  std::atomic<int> workers{0};
  run_tasks(1, true, [&](const std::function<int64_t()>& next) {
    ++workers;
    while (next() >= 0) {
    }
  });
  run_tasks(50, false, [&](const std::function<int64_t()>& next) {
    ++workers;
    while (next() >= 0) {
    }
  });
  EXPECT_EQ(workers, 2);
}

TEST_P(ParallelTasks, OperatorsInsideRecordNothingAndAreNotParallel) {
  const at::Tensor x = at::ones({4}).set_requires_grad(true);
  std::atomic<int> recorded{0};
  std::atomic<int> nested{0};
  run_tasks(8, true, [&](const std::function<int64_t()>& next) {
    while (next() >= 0) {
      recorded += x.mul(2).requires_grad();
      nested += GetParam() > 1 && !at::in_parallel_region();
    }
  });
  EXPECT_EQ(recorded, 0);
  EXPECT_EQ(nested, 0);
}

TEST_P(ParallelTasks, AnExceptionReachesTheCaller) {
  const auto fail = [](const std::function<int64_t()>& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      if (i == 5) throw std::out_of_range("task 5");
    }
  };
  EXPECT_THROW(run_tasks(8, true, fail), std::out_of_range);
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelTasks, testing::Values(1, 2, 4));

}  // namespace
}  // namespace stagecraft::detail
