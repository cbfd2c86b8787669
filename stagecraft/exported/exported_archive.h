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

/// A file that torch.export.save has written, with torch 2.11 to 2.13: one program or several.
///
///   ExportedArchive archive("llama.pt2");
///   Pipe pipe(archive.graph(), {.points = {{"model.layers.4", SplitPoint::kBeginning}}});
///
/// The graph is like that of a captured model: it is cut, saved, printed and run the same way. Its
/// parameters are named as in Python, nodes know the modules they were called in, and inputs may
/// have any size that the model was exported for.
///
/// Weights are not read but mapped: they lie in memory once, and come from the disk when they are
/// needed. What trains them does not change the file. Whoever shortens or overwrites the file
/// meanwhile, instead of replacing it by another, breaks the programs that have it mapped.
class ExportedArchive {
 public:
  /// FileError when the file is missing, damaged or no such archive.
  explicit ExportedArchive(const std::string& path);
  ~ExportedArchive();
  ExportedArchive(ExportedArchive&&) noexcept;
  ExportedArchive& operator=(ExportedArchive&&) noexcept;

  /// The names of its programs.
  const std::vector<std::string>& programs() const;

  /// A program as a graph; without a name, the only one, or that which is called "model". Two
  /// calls give graphs that share their tensors. ArgumentError for a name that is not there,
  /// FileError for a program that is damaged, and GraphError, which names the node and its
  /// operator, for one that cannot run without Python: operators that this program has not, scan
  /// and other regions.
  Graph graph(const std::string& program = "") const;

  /// What a reader of a graph should know, a line each: custom autograd functions, whose backward
  /// an export loses, and conditions on the inputs that cannot be checked.
  std::vector<std::string> warnings(const std::string& program = "") const;

  /// The version of torch that wrote a program.
  std::string torch_version(const std::string& program = "") const;

  /// What a program was exported with. FileError when the archive does not have it, or it holds
  /// objects of Python's.
  Arguments example(const std::string& program = "") const;

  /// Files that the writer has put in beside the programs, and the bytes of one. FileError when
  /// there is none of that name. The bytes live as long as the archive.
  std::vector<std::string> extra_files() const;
  std::span<const std::byte> extra_file(const std::string& name) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The graph of an archive with one program.
Graph load_exported(const std::string& path);

}  // namespace stagecraft
