#include "tests/exported/zip_writer.h"

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace stagecraft {

namespace {

template <typename T>
void append(std::string& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  put(bytes, at, value);
}

template <typename T>
T read(const std::string& bytes, std::size_t at) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return static_cast<T>(value);
}

/// From the version to the length of the name: what an entry and a local header have in common.
void append_common(std::string& bytes, const ZipMember& member) {
  append<uint16_t>(bytes, 20);
  append(bytes, member.flags);
  append(bytes, member.method);
  append<uint32_t>(bytes, 0);  // time
  append<uint32_t>(bytes, 0);  // checksum
  append(bytes, static_cast<uint32_t>(member.bytes.size()));
  append(bytes, static_cast<uint32_t>(member.bytes.size()));
  append(bytes, static_cast<uint16_t>(member.name.size()));
}

}  // namespace

std::string zip_bytes(const std::vector<ZipMember>& members, const std::string& comment) {
  std::string bytes;
  std::vector<std::size_t> locals;
  for (const ZipMember& member : members) {
    locals.push_back(bytes.size());
    append<uint32_t>(bytes, 0x04034b50);
    append_common(bytes, member);
    const std::size_t end = bytes.size() + 2 + member.name.size();
    const std::size_t padding = member.is_aligned ? (64 - (end + 4) % 64) % 64 + 4 : 0;
    append(bytes, static_cast<uint16_t>(padding));
    bytes += member.name;
    if (padding > 0) {
      append<uint16_t>(bytes, 0x4246);
      append(bytes, static_cast<uint16_t>(padding - 4));
      bytes.append(padding - 4, 'Z');
    }
    bytes += member.bytes;
  }
  const std::size_t directory = bytes.size();
  for (std::size_t i = 0; i < members.size(); ++i) {
    append<uint32_t>(bytes, 0x02014b50);
    append<uint16_t>(bytes, 20);
    append_common(bytes, members[i]);
    append<uint16_t>(bytes, 0);  // extra
    append<uint16_t>(bytes, 0);  // comment
    append<uint16_t>(bytes, 0);  // disk
    append<uint16_t>(bytes, 0);
    append<uint32_t>(bytes, 0);
    append(bytes, static_cast<uint32_t>(locals[i]));
    bytes += members[i].name;
  }
  const std::size_t size = bytes.size() - directory;
  append<uint32_t>(bytes, 0x06054b50);
  append<uint32_t>(bytes, 0);  // disks
  append(bytes, static_cast<uint16_t>(members.size()));
  append(bytes, static_cast<uint16_t>(members.size()));
  append(bytes, static_cast<uint32_t>(size));
  append(bytes, static_cast<uint32_t>(directory));
  append(bytes, static_cast<uint16_t>(comment.size()));
  return bytes + comment;
}

ZipPlaces find_places(const std::string& bytes) {
  ZipPlaces places;
  places.end = bytes.rfind("PK\x05\x06");
  if (places.end == std::string::npos) throw std::invalid_argument("no archive");
  const auto count = read<uint16_t>(bytes, places.end + 10);
  places.directory = read<uint32_t>(bytes, places.end + 16);
  std::size_t at = places.directory;
  for (int i = 0; i < count; ++i) {
    places.entries.push_back(at);
    at += 46 + std::size_t{read<uint16_t>(bytes, at + 28)} + read<uint16_t>(bytes, at + 30) +
          read<uint16_t>(bytes, at + 32);
  }
  return places;
}

TempFile::TempFile(const std::string& bytes) {
  static int number = 0;
  path_ = fmt::format("{}exported_{}_{}.pt2", testing::TempDir(), ::getpid(), number++);
  rewrite(bytes);
}

TempFile::~TempFile() {
  std::remove(path_.c_str());
}

// Creates a new file: mappings of the old file stay valid.
void TempFile::rewrite(const std::string& bytes) const {
  std::remove(path_.c_str());
  std::ofstream file(path_, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path_);
}

}  // namespace stagecraft
