#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft {

/// A temporary file that holds the programs of a stage while they are loaded, because AOTInductor
/// loads from files only. The destructor removes it. FileError if it cannot be written.
class ProgramFile {
 public:
  explicit ProgramFile(std::span<const std::byte> bytes);
  ~ProgramFile();
  ProgramFile(const ProgramFile&) = delete;
  ProgramFile& operator=(const ProgramFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// One program that Inductor compiled ahead of time. Used by one thread at a time; several threads
/// may load programs at the same time. On a GPU it runs on the current stream, and the host does
/// not wait.
class CompiledProgram {
 public:
  /// Loads the program `name` of the file. Error, with the cause, if it cannot be loaded.
  CompiledProgram(const std::string& path, const std::string& name, c10::Device device);
  ~CompiledProgram();
  CompiledProgram(CompiledProgram&&) noexcept;
  CompiledProgram& operator=(CompiledProgram&&) noexcept;

  /// Runs the program. Each argument is released after its last use in the program, if the caller
  /// has no reference to it. REQUIRES the number, dtypes, sizes and strides that the program was
  /// compiled for: the program does not look at strides. Throws what torch throws.
  std::vector<at::Tensor> run(std::vector<at::Tensor>&& arguments);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
