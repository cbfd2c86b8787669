#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "stagecraft/exported/program_schema.h"
#include "stagecraft/exported/zip_file.h"

namespace stagecraft::exported {

/// The weights, buffers and constants of one program. Their memory is the mapped file. Names with
/// the same piece of the file share their memory.
class Payload {
 public:
  Payload(const ZipFile& file, const std::string& program);

  /// A tensor, and the piece of the file that contains it.
  struct Found {
    at::Tensor tensor;
    std::string piece;
  };
  /// The tensor with that name in the model. FileError if there is none, or if it does not fit into
  /// its piece.
  Found get(const std::string& name) const;

 private:
  struct Entry {
    std::string folder;
    RawPayload raw;
  };

  c10::Storage storage_of(const std::string& piece, std::span<std::byte> bytes) const;

  const ZipFile& file_;
  std::map<std::string, Entry> entries_;
  mutable std::map<std::string, c10::Storage> storages_;
};

}  // namespace stagecraft::exported
