#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stagecraft::detail {

/// What is known of a file that was written: enough to find out later whether it is still the same.
struct FileSeal {
  uint64_t size = 0;
  uint64_t checksum = 0;

  friend bool operator==(const FileSeal&, const FileSeal&) = default;
};

/// A new file whose bytes are on the disk when close() returns. FileError, with the path and what
/// the system says, when something cannot be written; what was written so far then stays.
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

/// Reads a file through. FileError when it cannot be read.
FileSeal seal_of(const std::string& path);
std::string read_text(const std::string& path);

/// Makes names in a folder (new files, renames) last. FileError when it cannot.
void sync_folder(const std::string& path);
/// Gives a folder another name. What is there under that name is replaced at once where the file
/// system can do that, and removed afterwards; otherwise it goes aside, to `aside`, first.
/// FileError when it cannot.
void replace_folder(const std::string& from, const std::string& to, const std::string& aside);

/// Holds a folder for this thread alone among all who ask, in this process and others. The system
/// lets go of it when the process ends in whatever way. FileError when somebody else has it for
/// longer than `wait`.
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
