#include "stagecraft/exported/zip_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft::exported {

namespace {

// The zip format, described in APPNOTE.TXT: records of fixed length that begin with a signature, in
// little-endian order.
constexpr uint32_t kEnd = 0x06054b50;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kMaxComment = 0xffff;  // the end record has its length in two bytes
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr std::size_t kEnd64LocatorSize = 20;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr std::size_t kEnd64Size = 56;
constexpr uint32_t kEntry = 0x02014b50;
constexpr std::size_t kEntrySize = 46;
constexpr uint32_t kLocal = 0x04034b50;
constexpr std::size_t kLocalSize = 30;
constexpr uint16_t kExtra64 = 0x0001;
constexpr uint32_t kIn64 = 0xffffffff;
constexpr uint16_t kStored = 0;
constexpr uint16_t kEncrypted = 1;

template <typename T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[offset + i]) << (8 * i)));
  }
  return value;
}

/// A file descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

ZipFile::ZipFile(std::string path, std::string what)
    : path_(std::move(path)), what_(std::move(what)) {
  map();
  read_directory();
  check_members();
}

void ZipFile::fail(const std::string& message) const {
  throw FileError(fmt::format("{}: {}", path_, message));
}

void ZipFile::map() {
  const Descriptor file(path_);
  struct stat info = {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    fail(fmt::format("cannot be read: {}", std::generic_category().message(errno)));
  }
  if (!S_ISREG(info.st_mode)) fail("is not a file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < kEndSize) fail(fmt::format("is not {}: it has {} bytes", what_, size));
  // Private and writable: training changes weights in place, and not in the file.
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  if (start == MAP_FAILED) {
    fail(fmt::format("cannot be mapped: {}", std::generic_category().message(errno)));
  }
  memory_ = std::shared_ptr<void>(start, [size](void* mapped) { ::munmap(mapped, size); });
  bytes_ = {static_cast<std::byte*>(start), size};
}

// Only a comment may follow the end record, so it is searched from the end of the file.
std::size_t ZipFile::find_end() const {
  const std::size_t last = bytes_.size() - kEndSize;
  const std::size_t first = last > kMaxComment ? last - kMaxComment : 0;
  std::size_t end = last;
  while (read_at<uint32_t>(bytes_, end) != kEnd) {
    if (end == first) {
      fail(fmt::format("is not {}, or is cut off: it has no directory at its end", what_));
    }
    --end;
  }
  return end;
}

void ZipFile::read_directory() {
  const std::size_t end = find_end();
  uint64_t count = read_at<uint16_t>(bytes_, end + 10);
  uint64_t size = read_at<uint32_t>(bytes_, end + 12);
  uint64_t offset = read_at<uint32_t>(bytes_, end + 16);
  if (end >= kEnd64LocatorSize &&
      read_at<uint32_t>(bytes_, end - kEnd64LocatorSize) == kEnd64Locator) {
    const auto at = read_at<uint64_t>(bytes_, end - kEnd64LocatorSize + 8);
    if (at > bytes_.size() || bytes_.size() - at < kEnd64Size ||
        read_at<uint32_t>(bytes_, at) != kEnd64) {
      fail("is damaged: its directory is not where its end record says");
    }
    count = read_at<uint64_t>(bytes_, at + 32);
    size = read_at<uint64_t>(bytes_, at + 40);
    offset = read_at<uint64_t>(bytes_, at + 48);
  }
  if (offset > end || size > end - offset) {
    fail("is damaged: its directory lies outside the file");
  }
  std::size_t at = offset;
  const std::size_t stop = offset + size;
  std::optional<std::string> folder;
  for (uint64_t i = 0; i < count; ++i) {
    if (stop - at < kEntrySize || read_at<uint32_t>(bytes_, at) != kEntry) {
      fail(fmt::format("is damaged: entry {} of its directory is invalid", i));
    }
    const std::size_t name_size = read_at<uint16_t>(bytes_, at + 28);
    const std::size_t extra_size = read_at<uint16_t>(bytes_, at + 30);
    const std::size_t comment_size = read_at<uint16_t>(bytes_, at + 32);
    if (stop - at - kEntrySize < name_size + extra_size + comment_size) {
      fail(fmt::format("is damaged: entry {} of its directory is cut off", i));
    }
    const std::string name(reinterpret_cast<const char*>(bytes_.data()) + at + kEntrySize,
                           name_size);
    add_member(name, read_entry(name, at, bytes_.subspan(at + kEntrySize + name_size, extra_size)),
               folder);
    at += kEntrySize + name_size + extra_size + comment_size;
  }
}

// Reads the member whose directory entry begins at `at`. `extra` are the extra fields of the entry.
ZipFile::Member ZipFile::read_entry(const std::string& name, std::size_t at,
                                    std::span<const std::byte> extra) const {
  const auto flags = read_at<uint16_t>(bytes_, at + 8);
  const auto method = read_at<uint16_t>(bytes_, at + 10);
  uint64_t packed = read_at<uint32_t>(bytes_, at + 20);
  uint64_t unpacked = read_at<uint32_t>(bytes_, at + 24);
  uint64_t local = read_at<uint32_t>(bytes_, at + 42);
  // Numbers that need more than four bytes are in an extra field, in this order.
  for (std::size_t e = 0; extra.size() - e >= 4;) {
    const auto id = read_at<uint16_t>(extra, e);
    const std::size_t length = read_at<uint16_t>(extra, e + 2);
    if (extra.size() - e - 4 < length) break;
    std::size_t field = e + 4;
    const std::size_t field_end = field + length;
    for (uint64_t* number : {&unpacked, &packed, &local}) {
      if (id != kExtra64 || *number != kIn64 || field_end - field < 8) continue;
      *number = read_at<uint64_t>(extra, field);
      field += 8;
    }
    e = field_end;
  }
  if ((flags & kEncrypted) != 0 || method != kStored || packed != unpacked) {
    fail(fmt::format("{} is compressed, so it cannot be mapped; {} has members that are stored",
                     name, what_));
  }
  if (local > bytes_.size() || bytes_.size() - local < kLocalSize ||
      read_at<uint32_t>(bytes_, local) != kLocal) {
    fail(fmt::format("is damaged: {} is not where the directory says", name));
  }
  const std::size_t begin = local + kLocalSize + read_at<uint16_t>(bytes_, local + 26) +
                            read_at<uint16_t>(bytes_, local + 28);
  if (begin > bytes_.size() || unpacked > bytes_.size() - begin) {
    fail(fmt::format("is damaged: {} reaches beyond the end of the file", name));
  }
  return {begin, unpacked};
}

// All members are in one folder, named as the file was when it was written. The first member sets
// `folder`.
void ZipFile::add_member(const std::string& name, Member member,
                         std::optional<std::string>& folder) {
  const std::size_t slash = name.find('/');
  std::string inside = slash == std::string::npos ? name : name.substr(slash + 1);
  const std::string own = slash == std::string::npos ? "" : name.substr(0, slash);
  if (!folder) folder = own;
  if (own != *folder) {
    fail(fmt::format("is damaged: {} is not in the folder '{}' like the others", name, *folder));
  }
  if (!inside.empty() && !members_.emplace(std::move(inside), member).second) {
    fail(fmt::format("is damaged: {} appears twice", name));
  }
}

// Tensors of different members must not share memory.
void ZipFile::check_members() const {
  std::vector<std::pair<std::size_t, const std::string*>> begins;
  for (const auto& [name, member] : members_) {
    if (member.size > 0) begins.emplace_back(member.offset, &name);
  }
  std::ranges::sort(begins);
  for (std::size_t i = 1; i < begins.size(); ++i) {
    const Member& before = members_.find(*begins[i - 1].second)->second;
    if (before.offset + before.size > begins[i].first) {
      fail(fmt::format("is damaged: {} and {} overlap", *begins[i - 1].second, *begins[i].second));
    }
  }
}

std::vector<std::string> ZipFile::names() const {
  std::vector<std::string> result;
  for (const auto& [name, member] : members_) result.push_back(name);
  return result;
}

bool ZipFile::has(std::string_view name) const {
  return members_.contains(name);
}

std::span<std::byte> ZipFile::member(std::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) fail(fmt::format("has no {}", name));
  return bytes_.subspan(found->second.offset, found->second.size);
}

std::string_view ZipFile::text(std::string_view name) const {
  const std::span<std::byte> bytes = member(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace stagecraft::exported
