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

/// The weights, buffers and constants of one program.
class Payload {
 public:
  Payload() = default;
  virtual ~Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  /// A tensor, and the piece of memory that contains it. Tensors of the same piece share it.
  struct Found {
    at::Tensor tensor;
    std::string piece;
  };
  /// The tensor with that name in the model. FileError if there is none.
  virtual Found get(const std::string& name) const = 0;
};

/// The tensors of an archive. Their memory is the mapped file. Tensors of the same piece of the
/// file share their memory. `get` throws FileError, too, if a tensor does not fit into its piece.
class FilePayload final : public Payload {
 public:
  FilePayload(const ZipFile& file, const std::string& program);

  Found get(const std::string& name) const override;

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
