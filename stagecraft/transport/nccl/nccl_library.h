#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace stagecraft::detail {

/// The functions of NCCL that are needed, found at run time, as its C API has had them since 2.7. A
/// communicator and a stream are pointers that nobody looks behind.
class NcclLibrary {
 public:
  using Result = int;
  using Comm = void*;
  using Stream = void*;
  /// Given by value in C; of no type but bytes.
  struct UniqueId {
    std::array<char, 128> bytes;
  };
  static constexpr Result kSuccess = 0;
  static constexpr Result kInProgress = 7;
  static constexpr int kBytes = 1;  // ncclUint8

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  Result (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*comm_get_async_error)(Comm, Result*) = nullptr;
  Result (*send)(const void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  Result (*receive)(void*, std::size_t, int type, int peer, Comm, Stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;

  /// STAGECRAFT_NCCL_LIBRARY, a path; otherwise libnccl.so.2 where the loader finds it (a program
  /// with torch's CUDA wheel has it) or beside torch. It stays loaded. ArgumentError that says what
  /// was tried.
  static std::shared_ptr<const NcclLibrary> load();

  /// "2.27.5"
  std::string version() const;
  /// NCCL's own words.
  std::string describe(Result result) const;
};

}  // namespace stagecraft::detail
