#pragma once

#include <memory>

#include "stagecraft/runtime/runner.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::bench {

/// The variable that names the file in which rank 0 draws its last step.
constexpr const char* kTimelineVariable = "STAGECRAFT_BENCH_TIMELINE";

/// Two stages that pass tensors of 8 MB on and take as long as one takes to travel, as if on
/// devices: the processors are free meanwhile. All ranks make and run it together.
class OverlapCase {
 public:
  explicit OverlapCase(Transport& transport);

  /// One step by what its compute alone would have taken, transfers free.
  double run();

 private:
  void compute(ActionContext& context) const;

  Rank rank_;
  double travel_ = 0;
  std::unique_ptr<Runner> runner_;
  Args args_;
};

}  // namespace stagecraft::bench
