#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// The example of a capture. Makes arguments of other sizes by repeating the example, or a part of
/// it.
class ExampleInputs {
 public:
  /// ArgumentError for sizes that the example does not have.
  ExampleInputs(const Arguments& example, const std::vector<SizeSpec>& specs);

  const std::vector<GraphSize>& sizes() const { return sizes_; }
  int64_t probe(std::size_t size) const { return probes_[size]; }
  /// `sizes` has one entry for each of sizes().
  Arguments at(std::span<const int64_t> sizes) const;

 private:
  struct Leaf {
    std::string path;
    at::Tensor tensor;
  };
  struct Place {
    std::string path;
    int64_t dim = 0;
    std::size_t size = 0;
  };

  std::vector<Leaf> tensors() const;
  void add_size(const SizeSpec& spec, const std::vector<Leaf>& leaves);
  c10::IValue resized(const std::string& path, const c10::IValue& leaf,
                      std::span<const int64_t> sizes) const;

  Arguments example_;
  std::vector<GraphSize> sizes_;
  std::vector<int64_t> probes_;
  std::vector<Place> places_;
};

}  // namespace stagecraft
