#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stagecraft/transport/transport.h"
#include "tests/runtime/harness.h"

namespace stagecraft {

/// What tests of pipelines over processes share, whatever connects them.

/// The batch of a step: steps have different sizes, so shapes change between processes.
Microbatches process_batch(const ScheduleCase& shape, int32_t step);

/// Trains three steps over the transport, and in this process over threads, and expects this rank's
/// losses and gradients to be equal bit by bit.
void expect_bits_of_threads(Transport& transport, const ScheduleCase& shape,
                            const std::function<TestModel()>& make);

/// The same for every schedule that trains, one after another over the one transport.
void expect_all_schedules_bits(Transport& transport);

/// Some combinations of the transparency matrix (transparency_cases.h) on as many ranks as the
/// transport has, a step each over the transport and over threads, with the same bits: as many as
/// $SC_MATRIX says, drawn from a seed that is printed, $SC_MATRIX_SEED if there is one.
void expect_matrix_bits(Transport& transport);

/// Cases with skip connections and weights that are sent, and the model of each.
std::vector<ScheduleCase> skip_cases();
TestModel skip_model(const ScheduleCase& shape);

}  // namespace stagecraft
