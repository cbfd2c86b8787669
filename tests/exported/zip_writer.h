#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// A member of a zip archive that a test writes; it need not be a truthful one.
struct ZipMember {
  std::string name;
  std::string bytes;
  uint16_t flags = 0;
  uint16_t method = 0;
  bool is_aligned = true;  ///< its bytes begin at a multiple of 64
};

/// The bytes of an archive, its directory in the order of the members.
std::string zip_bytes(const std::vector<ZipMember>& members, const std::string& comment = "");

/// Where things are in what zip_bytes() wrote, for tests that change them.
struct ZipPlaces {
  std::size_t end = 0;               ///< of the record that ends the directory
  std::size_t directory = 0;         ///< of its first entry
  std::vector<std::size_t> entries;  ///< of each entry
};
ZipPlaces find_places(const std::string& bytes);

/// Writes a number over what is there, little-endian.
template <typename T>
void put(std::string& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[at + i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  }
}

/// A file that is removed at the end.
class TempFile {
 public:
  explicit TempFile(const std::string& bytes);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  const std::string& path() const { return path_; }
  void rewrite(const std::string& bytes) const;

 private:
  std::string path_;
};

}  // namespace stagecraft
