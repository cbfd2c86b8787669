#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Writes texts, graphs and tensors into one file: a zip archive with checksums. The file appears
/// under its name only when it is complete. FileError if it cannot be written.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(std::string path);
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  void add_text(const std::string& name, const std::string& text);
  /// Adds the graph with all its tensors. A tensor that is already in the file is not written
  /// again. ArgumentError for a graph with a generator of its own, which cannot be saved.
  void add_graph(const std::string& name, const Graph& graph);
  void finish();

 private:
  std::size_t add_tensor(const at::Tensor& tensor);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a file of ArchiveWriter. Tensors are read to the CPU when a graph needs them. Two graphs
/// that shared a tensor share it again. Every failure is a FileError that names the file.
class ArchiveReader {
 public:
  explicit ArchiveReader(std::string path);
  /// An archive in memory, which must outlive the reader. Failures have `name` instead of a path.
  ArchiveReader(std::string name, std::span<const std::byte> bytes);
  ~ArchiveReader();
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  bool has(const std::string& name) const;
  std::string text(const std::string& name);
  Graph graph(const std::string& name);

  [[noreturn]] void fail(const std::string& message) const;

 private:
  at::Tensor tensor(std::size_t number);
  void read_index();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One graph in a file. Throws what ArchiveWriter and ArchiveReader throw.
void save_graph(const Graph& graph, const std::string& path);
Graph load_graph(const std::string& path);

}  // namespace stagecraft
