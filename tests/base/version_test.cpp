#include "stagecraft/base/version.h"

#include <string>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

// What CMake has read from the header is the version of the CMake package and of the packages.
TEST(Version, IsTheSameInTheHeaderTheLibraryAndTheBuild) {
  EXPECT_EQ(version(), SC_PROJECT_VERSION);
  EXPECT_EQ(version(), std::to_string(STAGECRAFT_VERSION_MAJOR) + "." +
                           std::to_string(STAGECRAFT_VERSION_MINOR) + "." +
                           std::to_string(STAGECRAFT_VERSION_PATCH));
}

TEST(Version, ComparesAsOneNumber) {
  EXPECT_EQ(STAGECRAFT_VERSION / 10000, STAGECRAFT_VERSION_MAJOR);
  EXPECT_EQ(STAGECRAFT_VERSION / 100 % 100, STAGECRAFT_VERSION_MINOR);
  EXPECT_EQ(STAGECRAFT_VERSION % 100, STAGECRAFT_VERSION_PATCH);
}

}  // namespace
}  // namespace stagecraft
