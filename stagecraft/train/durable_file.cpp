#include "stagecraft/train/durable_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"

namespace stagecraft::detail {

namespace {

/// Checksums are computed in blocks of this size, so they do not depend on the sizes of writes.
constexpr std::size_t kBlock = 1U << 20U;

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw FileError(fmt::format("{}: cannot be {}: {}", path, what, std::strerror(error)));
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : file_(::open(path.c_str(), flags | O_CLOEXEC)) {
    if (file_ < 0) fail(path, "read", errno);
  }
  ~OpenFile() { ::close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

/// Reads until the block is full or the file ends. Returns the number of bytes.
std::size_t read_block(const OpenFile& file, const std::string& path, std::span<std::byte> block) {
  std::size_t got = 0;
  while (got < block.size()) {
    const ssize_t n = ::read(file.get(), block.data() + got, block.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read", errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  return got;
}

}  // namespace

DurableFile::DurableFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path_, "written", errno);
  block_.reserve(kBlock);
}

DurableFile::~DurableFile() {
  if (file_ >= 0) ::close(file_);
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kBlock - block_.size());
    block_.insert(block_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (block_.size() == kBlock) flush();
  }
}

void DurableFile::flush() {
  seal_.checksum = checksum(block_, seal_.checksum);
  seal_.size += block_.size();
  std::span<const std::byte> left(block_);
  while (!left.empty()) {
    const ssize_t n = ::write(file_, left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "written", errno);
    left = left.subspan(static_cast<std::size_t>(n));
  }
  block_.clear();
}

FileSeal DurableFile::close() {
  if (!block_.empty()) flush();
  if (::fsync(file_) != 0) fail(path_, "written", errno);
  if (::close(std::exchange(file_, -1)) != 0) fail(path_, "written", errno);
  return seal_;
}

FileSeal seal_of(const std::string& path) {
  const OpenFile file(path, O_RDONLY);
  std::vector<std::byte> block(kBlock);
  FileSeal seal;
  while (const std::size_t n = read_block(file, path, block)) {
    seal.checksum = checksum(std::span(block).first(n), seal.checksum);
    seal.size += n;
  }
  return seal;
}

std::string read_text(const std::string& path) {
  const OpenFile file(path, O_RDONLY);
  std::vector<std::byte> block(kBlock);
  std::string text;
  while (const std::size_t n = read_block(file, path, block)) {
    text.append(reinterpret_cast<const char*>(block.data()), n);
  }
  return text;
}

void sync_folder(const std::string& path) {
  const OpenFile folder(path, O_RDONLY | O_DIRECTORY);
  // Some file systems cannot sync a folder and need not.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail(path, "written", errno);
}

void replace_folder(const std::string& from, const std::string& to, const std::string& aside) {
  std::error_code ignored;
  if (!std::filesystem::exists(to, ignored)) {
    if (std::rename(from.c_str(), to.c_str()) == 0) return;
    fail(to, "written", errno);
  }
  // The exchange is atomic, so a complete folder has the name at any time.
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    std::filesystem::remove_all(from, ignored);
    return;
  }
  // The file system cannot exchange names. A folder that is half removed must not look complete.
  if (std::rename(to.c_str(), aside.c_str()) != 0) fail(to, "written", errno);
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, "written", errno);
  std::filesystem::remove_all(aside, ignored);
}

FolderLock::FolderLock(const std::string& path, std::chrono::seconds wait)
    : folder_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (folder_ < 0) fail(path, "read", errno);
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (::flock(folder_, LOCK_EX | LOCK_NB) != 0) {
    // Some file systems have no locks. There, only the atomic renaming of folders protects them.
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (std::chrono::steady_clock::now() > deadline) {
      ::close(folder_);
      throw FileError(
          fmt::format("{}: locked by a different process, waited {} s", path, wait.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

FolderLock::~FolderLock() {
  ::close(folder_);
}

}  // namespace stagecraft::detail
