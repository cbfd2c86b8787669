#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::exported {

/// A zip archive whose members are not compressed, mapped into memory. A member is a piece of the
/// file and is not copied. Writes to its memory stay in this process.
///
/// (torch's own reader does not tell whether a member is compressed, and therefore whether it can
/// be mapped.)
///
/// Throws FileError, which names the file, if it is not such an archive: a wrong beginning, a
/// truncated directory, members outside the file, members that overlap or are in several folders,
/// compressed members.
class ZipFile {
 public:
  /// `what` is what messages call the archive.
  explicit ZipFile(std::string path, std::string what = "an archive of torch.export");

  const std::string& path() const { return path_; }
  /// Names, without the common folder of all members.
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  /// FileError for an unknown name. The bytes live as long as memory().
  std::span<std::byte> member(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  /// The owner of the bytes of all members.
  const std::shared_ptr<void>& memory() const { return memory_; }

  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Member {
    std::size_t offset = 0;
    std::size_t size = 0;
  };

  void map();
  std::size_t find_end() const;
  void read_directory();
  Member read_entry(const std::string& name, std::size_t at,
                    std::span<const std::byte> extra) const;
  void add_member(const std::string& name, Member member, std::optional<std::string>& folder);
  void check_members() const;

  std::string path_;
  std::string what_;
  std::shared_ptr<void> memory_;
  std::span<std::byte> bytes_;
  std::map<std::string, Member, std::less<>> members_;
};

}  // namespace stagecraft::exported
