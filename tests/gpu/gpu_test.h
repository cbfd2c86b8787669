#pragma once

#include <cstdlib>

#include <gtest/gtest.h>

#include <ATen/Context.h>

namespace stagecraft {

/// Skips without a CUDA device; fails instead where STAGECRAFT_REQUIRE_GPU is set.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (at::globalContext().hasCUDA()) return;
    if (std::getenv("STAGECRAFT_REQUIRE_GPU") != nullptr) FAIL() << "there is no CUDA device";
    GTEST_SKIP() << "there is no CUDA device";
  }

  const at::Device gpu_ = at::Device(at::kCUDA, 0);
};

}  // namespace stagecraft
