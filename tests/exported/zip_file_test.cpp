#include "stagecraft/exported/zip_file.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/exported/zip_writer.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

std::vector<ZipMember> two() {
  return {{"top/a", "first"}, {"top/b/c", "second"}};
}

/// Expects a FileError that names the file and says `text`.
void expect_zip_refused(const std::string& bytes, const std::string& text) {
  const TempFile file(bytes);
  EXPECT_ERROR(ZipFile(file.path()), FileError, text) << text;
  EXPECT_ERROR(ZipFile(file.path()), FileError, file.path() + ": ") << text;
}

TEST(ZipFile, GivesItsMembersWithoutTheirFolder) {
  const TempFile file(zip_bytes(two()));
  const ZipFile zip(file.path());
  EXPECT_EQ(zip.names(), (std::vector<std::string>{"a", "b/c"}));
  EXPECT_TRUE(zip.has("b/c"));
  EXPECT_FALSE(zip.has("top/a"));
  EXPECT_EQ(zip.text("a"), "first");
  EXPECT_EQ(zip.text("b/c"), "second");
  EXPECT_ERROR(zip.text("d"), FileError, file.path() + ": has no d");
}

TEST(ZipFile, WhatIsWrittenToAMemberStaysHere) {
  const TempFile file(zip_bytes(two()));
  const ZipFile zip(file.path());
  zip.member("a")[0] = std::byte{'F'};
  EXPECT_EQ(zip.text("a"), "First");
  EXPECT_EQ(ZipFile(file.path()).text("a"), "first");
}

TEST(ZipFile, TakesACommentAtTheEnd) {
  const TempFile file(zip_bytes(two(), std::string(0xffff, 'x')));
  EXPECT_EQ(ZipFile(file.path()).text("a"), "first");
}

TEST(ZipFile, TakesFoldersAndEmptyMembers) {
  std::vector<ZipMember> members = two();
  members.insert(members.begin(), {"top/", ""});
  members.push_back({"top/empty", ""});
  const TempFile file(zip_bytes(members));
  const ZipFile zip(file.path());
  EXPECT_EQ(zip.names(), (std::vector<std::string>{"a", "b/c", "empty"}));
  EXPECT_EQ(zip.text("empty"), "");
}

TEST(ZipFile, RefusesWhatIsNoFile) {
  EXPECT_ERROR(ZipFile("/nowhere/at/all.pt2"), FileError,
               "/nowhere/at/all.pt2: cannot be read: No such file or directory");
  EXPECT_ERROR(ZipFile("/"), FileError, "/: is not a file");
  expect_zip_refused("", "is not an archive of torch.export: it has 0 bytes");
  expect_zip_refused("PK\x03\x04", "it has 4 bytes");
  expect_zip_refused(std::string(1000, 'x'), "it has no directory at its end");
  expect_zip_refused(std::string(200000, '\0'), "it has no directory at its end");
}

TEST(ZipFile, RefusesAFileThatIsCutOffAnywhere) {
  const std::string bytes = zip_bytes(two());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const TempFile file(bytes.substr(0, size));
    EXPECT_ERROR(ZipFile(file.path()), FileError, "is not an archive of torch.export") << size;
  }
}

// The directory stays, what it points to is gone.
TEST(ZipFile, RefusesAFileWithoutItsBeginning) {
  const std::string bytes = zip_bytes(two());
  for (std::size_t size = 1; size + 22 <= bytes.size(); ++size) {
    const TempFile file(bytes.substr(size));
    EXPECT_ERROR(ZipFile(file.path()), FileError, "is damaged: ") << size;
  }
}

struct ZipCase {
  std::function<void(std::string&, const ZipPlaces&)> change;
  std::string message;
};

TEST(ZipFile, RefusesNumbersThatPointElsewhere) {
  const std::vector<ZipCase> cases = {
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.end + 16, 0xfffffff0); },
       "its directory lies outside the file"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.end + 12, 0xfffffff0); },
       "its directory lies outside the file"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.end + 16, 1); },
       "entry 0 of its directory is invalid"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.end + 12, 10); },
       "entry 0 of its directory is invalid"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.end + 12, 46); },
       "entry 0 of its directory is cut off"},
      {[](std::string& b, const ZipPlaces& p) { put<uint16_t>(b, p.end + 10, 0xffff); },
       "entry 2 of its directory is invalid"},
      {[](std::string& b, const ZipPlaces& p) { put<uint16_t>(b, p.entries[1] + 28, 0xffff); },
       "entry 1 of its directory is cut off"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.entries[0] + 42, 1); },
       "top/a is not where the directory says"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.entries[0] + 42, 0xfffffff0); },
       "top/a is not where the directory says"},
      {[](std::string& b, const ZipPlaces& p) {
         put<uint32_t>(b, p.entries[1] + 20, 0x7fffffff);
         put<uint32_t>(b, p.entries[1] + 24, 0x7fffffff);
       },
       "top/b/c reaches beyond the end of the file"},
      {[](std::string& b, const ZipPlaces&) { put<uint16_t>(b, 28, 0xffff); },
       "top/a reaches beyond the end of the file"},
      {[](std::string& b, const ZipPlaces& p) {
         put<uint32_t>(b, p.entries[0] + 20, 100);
         put<uint32_t>(b, p.entries[0] + 24, 100);
       },
       "a and b/c overlap"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.entries[1] + 42, 0); },
       "overlap"},
      {[](std::string& b, const ZipPlaces& p) { put<uint16_t>(b, p.entries[0] + 10, 8); },
       "top/a is compressed, so it cannot be mapped"},
      {[](std::string& b, const ZipPlaces& p) { put<uint16_t>(b, p.entries[0] + 8, 1); },
       "top/a is compressed"},
      {[](std::string& b, const ZipPlaces& p) { put<uint32_t>(b, p.entries[0] + 20, 4); },
       "top/a is compressed"},
  };
  for (const ZipCase& each : cases) {
    std::string bytes = zip_bytes(two());
    each.change(bytes, find_places(bytes));
    expect_zip_refused(bytes, each.message);
  }
}

TEST(ZipFile, RefusesNamesThatComeTwice) {
  expect_zip_refused(zip_bytes({{"top/a", "first"}, {"top/a", "second"}}), "top/a appears twice");
}

TEST(ZipFile, RefusesASecondFolder) {
  expect_zip_refused(zip_bytes({{"top/a", "first"}, {"other/b", "second"}}),
                     "other/b is not in the folder 'top' like the others");
  expect_zip_refused(zip_bytes({{"top/a", "first"}, {"b", "second"}}),
                     "b is not in the folder 'top' like the others");
}

/// An archive of one member whose sizes and place stand in fields of eight bytes.
std::string zip64(uint64_t size, uint64_t local, uint64_t directory_size, uint64_t count = 1) {
  std::string bytes = zip_bytes({{"top/a", "first"}});
  const ZipPlaces places = find_places(bytes);
  bytes.resize(places.end);
  put<uint32_t>(bytes, places.directory + 20, 0xffffffff);
  put<uint32_t>(bytes, places.directory + 24, 0xffffffff);
  put<uint16_t>(bytes, places.directory + 30, 28);
  put<uint32_t>(bytes, places.directory + 42, 0xffffffff);
  auto add = [&]<typename T>(T value) {
    bytes.resize(bytes.size() + sizeof(T));
    put(bytes, bytes.size() - sizeof(T), value);
  };
  add(uint16_t{1});
  add(uint16_t{24});
  add(size);
  add(size);
  add(local);
  const uint64_t end = bytes.size();
  add(uint32_t{0x06064b50});
  add(uint64_t{44});
  add(uint32_t{0});
  add(uint64_t{0});
  add(count);
  add(count);
  add(directory_size == 0 ? end - places.directory : directory_size);
  add(uint64_t{places.directory});
  add(uint32_t{0x07064b50});
  add(uint32_t{0});
  add(end);
  add(uint32_t{1});
  add(uint32_t{0x06054b50});
  add(uint32_t{0});
  for (int i = 0; i < 3; ++i) add(uint32_t{0xffffffff});
  add(uint16_t{0});
  return bytes;
}

TEST(ZipFile, ReadsSizesOfEightBytes) {
  const TempFile file(zip64(5, 0, 0));
  EXPECT_EQ(ZipFile(file.path()).text("a"), "first");
}

TEST(ZipFile, RefusesAbsurdSizesOfEightBytes) {
  expect_zip_refused(zip64(uint64_t{1} << 62, 0, 0), "top/a reaches beyond the end of the file");
  expect_zip_refused(zip64(UINT64_MAX, 0, 0), "top/a reaches beyond the end of the file");
  expect_zip_refused(zip64(5, UINT64_MAX, 0), "top/a is not where the directory says");
  expect_zip_refused(zip64(5, uint64_t{1} << 63, 0), "top/a is not where the directory says");
  expect_zip_refused(zip64(5, 0, UINT64_MAX), "its directory lies outside the file");
  expect_zip_refused(zip64(5, 0, 0, UINT64_MAX), "entry 1 of its directory is invalid");
  std::string bytes = zip64(5, 0, 0);
  put<uint64_t>(bytes, bytes.size() - 22 - 12, UINT64_MAX - 3);
  expect_zip_refused(bytes, "its directory is not where its end record says");
}

}  // namespace
}  // namespace stagecraft::exported
