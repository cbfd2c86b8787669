#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::exported {

/// A zip archive whose members are stored as they are, mapped into memory: a member is a piece of
/// the file, which nothing copies. What is written to it stays in this process.
///
/// (The reader that the engine has does not say whether a member is compressed, and so not whether
/// it can be mapped.)
///
/// Throws FileError, which names the file, for what is no such archive: a wrong beginning, a
/// directory that is cut off, members outside the file, on top of each other or in several
/// folders, compressed ones.
class ZipFile {
 public:
  explicit ZipFile(std::string path);

  const std::string& path() const { return path_; }
  /// Without the folder that all members are in.
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  /// FileError when there is none of that name. The bytes live as long as memory().
  std::span<std::byte> member(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  /// What holds the bytes of all members.
  const std::shared_ptr<void>& memory() const { return memory_; }

  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Member {
    std::size_t offset = 0;
    std::size_t size = 0;
  };

  void map();
  void read_directory();
  void check_members() const;

  std::string path_;
  std::shared_ptr<void> memory_;
  std::span<std::byte> bytes_;
  std::map<std::string, Member, std::less<>> members_;
};

}  // namespace stagecraft::exported
