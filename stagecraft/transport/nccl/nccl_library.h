#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace stagecraft::detail {

/// The functions of NCCL that are used. They are in its C API since 2.7 and are found at run time.
/// Communicators and streams are opaque pointers.
class NcclLibrary {
 public:
  using Result = int;
  using Comm = void*;
  using Stream = void*;
  /// ncclUniqueId, which is passed by value.
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

  /// Loads the file in STAGECRAFT_NCCL_LIBRARY; otherwise libnccl.so.2 where the loader finds it
  /// (as in a program with torch's CUDA wheel) or beside torch. It stays loaded. ArgumentError
  /// lists what was tried.
  static std::shared_ptr<const NcclLibrary> load();

  /// "2.27.5"
  std::string version() const;
  /// NCCL's text for a result.
  std::string describe(Result result) const;
};

}  // namespace stagecraft::detail
