#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Writes texts, graphs and tensors into one file: a zip archive with checksums. The file appears
/// under its name when it is complete, and not before. FileError when it cannot be written.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(std::string path);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  void add_text(const std::string& name, const std::string& text);
  /// With all its tensors; one that is in the file already is not written again. ArgumentError for
  /// a graph with a generator of its own, which no file can hold.
  void add_graph(const std::string& name, const Graph& graph);
  void finish();

 private:
  std::size_t add_tensor(const at::Tensor& tensor);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads such a file. Tensors are read when a graph needs them, to the CPU; two graphs that shared
/// one share it again. Every failure is a FileError that names the file.
class ArchiveReader {
 public:
  explicit ArchiveReader(std::string path);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  bool has(const std::string& name) const;
  std::string text(const std::string& name);
  Graph graph(const std::string& name);

  [[noreturn]] void fail(const std::string& message) const;

 private:
  at::Tensor tensor(std::size_t number);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One graph in a file. Throws as the two above do.
void save_graph(const Graph& graph, const std::string& path);
Graph load_graph(const std::string& path);

}  // namespace stagecraft
