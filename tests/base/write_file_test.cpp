#include "stagecraft/base/write_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

class WriteFile : public testing::Test {
 protected:
  WriteFile() : folder_(fs::path(testing::TempDir()) / ("write_file_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~WriteFile() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(WriteFile, WritesAllAndLeavesNothingElseBehind) {
  const std::string text("a\0b\n", 4);
  write_file(path("x"), "longer than what comes next");
  write_file(path("x"), text);
  EXPECT_EQ(read(path("x")), text);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(WriteFile, KeepsPermissionsAndFollowsLinks) {
  write_file(path("x"), "1");
  fs::permissions(path("x"), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(path("x"), path("link"));
  write_file(path("link"), "2");
  EXPECT_EQ(read(path("x")), "2");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(fs::status(path("x")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(WriteFile, SaysWhichFileAndWhy) {
  const std::string nowhere = path("missing/x");
  try {
    write_file(nowhere, "text");
    FAIL() << "it was written";
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()), "cannot write " + nowhere + ": No such file or directory");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 0);
}

}  // namespace
}  // namespace stagecraft
