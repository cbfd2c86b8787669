#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stagecraft::detail {

/// Size and checksum of a file, for detecting later changes.
struct FileSeal {
  uint64_t size = 0;
  uint64_t checksum = 0;

  friend bool operator==(const FileSeal&, const FileSeal&) = default;
};

/// A new file whose bytes are on the disk when close() returns. FileError, with the path and the
/// system's message, if a write fails; the bytes that were written stay.
class DurableFile {
 public:
  explicit DurableFile(std::string path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  FileSeal close();

 private:
  void flush();

  std::string path_;
  int file_ = -1;
  FileSeal seal_;
  std::vector<std::byte> block_;
};

/// Reads a whole file. FileError if it cannot be read.
FileSeal seal_of(const std::string& path);
std::string read_text(const std::string& path);

/// Flushes the names in a folder (new files, renames) to the disk. FileError if that fails.
void sync_folder(const std::string& path);
/// Renames a folder. An existing folder of that name is exchanged atomically if the file system
/// supports it, and removed afterwards. Otherwise it is first renamed to `aside`. FileError if that
/// fails.
void replace_folder(const std::string& from, const std::string& to, const std::string& aside);

/// An exclusive lock on a folder, among threads and processes that use this class. The system
/// releases the lock when the process ends. FileError if the lock is not free within `wait`.
class FolderLock {
 public:
  FolderLock(const std::string& path, std::chrono::seconds wait);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_ = -1;
};

}  // namespace stagecraft::detail
