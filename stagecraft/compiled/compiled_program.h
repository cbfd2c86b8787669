#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft {

/// A file that holds the programs of a stage while they are loaded: AOTInductor loads from files
/// only. Removed by the destructor. FileError if it cannot be written.
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
  /// `name`: of the program in the file. Error, with the cause, if it cannot be loaded.
  CompiledProgram(const std::string& path, const std::string& name, c10::Device device);
  ~CompiledProgram();
  CompiledProgram(CompiledProgram&&) noexcept;
  CompiledProgram& operator=(CompiledProgram&&) noexcept;

  /// Runs it. Releases each argument at its last use inside, if the caller holds it no longer.
  /// REQUIRES the number, dtypes, sizes and strides that the program was compiled for: the program
  /// does not look at strides. Throws what torch throws.
  std::vector<at::Tensor> run(std::vector<at::Tensor>&& arguments);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
