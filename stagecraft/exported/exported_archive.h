#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// A file written by torch.export.save of torch 2.11 to 2.15, with one or several programs.
///
///   ExportedArchive archive("llama.pt2");
///   Pipe pipe(archive.graph(), {.points = {{"model.layers.4", SplitPoint::kBeginning}}});
///
/// The graph is like that of a captured model: it is split, saved, printed and run in the same way.
/// Its parameters have their names in Python, nodes know the modules that called them, and the
/// inputs may have all sizes that the model was exported for.
///
/// Weights are mapped, not read: they are in memory once, and come from the disk when they are
/// needed. Training does not change the file. The file may be replaced while it is mapped, but must
/// not be truncated or overwritten.
class ExportedArchive {
 public:
  /// FileError if the file is missing, damaged or not such an archive.
  explicit ExportedArchive(const std::string& path);
  ~ExportedArchive();
  ExportedArchive(ExportedArchive&&) noexcept;
  ExportedArchive& operator=(ExportedArchive&&) noexcept;

  /// The names of its programs.
  const std::vector<std::string>& programs() const;

  /// A program as a graph. Without a name: the only program, or the program called "model". Two
  /// calls return graphs that share their tensors. ArgumentError for an unknown name, FileError for
  /// a damaged program, and GraphError, which names the node and its operator, for a program that
  /// cannot run without Python: operators that are not registered in this process, scan and other
  /// regions.
  Graph graph(const std::string& program = "") const;

  /// Warnings about a program, one line each: custom autograd functions, whose backward an export
  /// loses, and conditions on the inputs that cannot be checked.
  std::vector<std::string> warnings(const std::string& program = "") const;

  /// The version of torch that wrote a program.
  std::string torch_version(const std::string& program = "") const;

  /// The example arguments of the export. FileError if the archive does not have them, or if they
  /// contain Python objects.
  Arguments example(const std::string& program = "") const;

  /// Further files that the writer put into the archive, and the bytes of one. FileError for an
  /// unknown name. The bytes live as long as the archive.
  std::vector<std::string> extra_files() const;
  std::span<const std::byte> extra_file(const std::string& name) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The graph of an archive with one program.
Graph load_exported(const std::string& path);

}  // namespace stagecraft
