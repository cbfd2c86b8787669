#include "tests/support/zoo.h"

#include <string>

#include <gtest/gtest.h>

#include "stagecraft/graph/capture.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/partition/pipe.h"
#include "tests/graph/graph_check.h"
#include "tests/partition/pipe_check.h"

namespace stagecraft {
namespace {

class Zoo : public testing::TestWithParam<zoo::ZooModel> {};

TEST_P(Zoo, IsCapturedCutAndTrained) {
  const zoo::ZooModel& model = GetParam();
  const TracedModel traced{model.body.forward, model.body.parameters, model.body.buffers};
  const Graph graph = expect_same(traced, model.inputs, {}, {4, 5, 2});
  for (const int32_t stages : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    const Pipe pipe(graph, {.policy = equal_cost(stages)});
    ASSERT_EQ(pipe.num_stages(), stages);
    for (int32_t i = 0; i < stages; ++i) expect_round_trip(pipe.stage_graph(StageId(i)));
    if (!model.is_random) {
      expect_same_run(pipe, model.body, model.inputs(4));
      expect_same_run(pipe, model.body, model.inputs(7));
    }
    EXPECT_EQ(
        train_everywhere(pipe, model.inputs, {.uncut_tolerance = model.regroups ? 1e-6 : 0.0}), "")
        << pipe.call_text();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, testing::ValuesIn(zoo::all()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace stagecraft
