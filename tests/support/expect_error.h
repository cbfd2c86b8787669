#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// Expects that the expression throws exactly `type` with a message that has `text` in it.
///
///   EXPECT_ERROR(split(tree, 0), ArgumentError, "chunks must be positive");
#define EXPECT_ERROR(expression, type, text)          \
  EXPECT_THAT([&] { static_cast<void>(expression); }, \
              testing::Throws<type>(testing::Property(&type::what, testing::HasSubstr(text))))
