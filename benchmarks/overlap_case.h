#pragma once

#include <memory>

#include "stagecraft/runtime/runner.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::bench {

/// The variable that names the file in which rank 0 draws its last step.
constexpr const char* kTimelineVariable = "STAGECRAFT_BENCH_TIMELINE";

/// Two stages that pass tensors of 8 MB. A stage takes as long as a transfer, and leaves the
/// processors free, as if it ran on a device. All ranks create and run it together.
class OverlapCase {
 public:
  explicit OverlapCase(Transport& transport);

  /// Runs a step. Returns its time divided by the time of its compute with free transfers.
  double run();

 private:
  void compute(ActionContext& context) const;

  Rank rank_;
  double travel_ = 0;
  std::unique_ptr<Runner> runner_;
  Args args_;
};

}  // namespace stagecraft::bench
