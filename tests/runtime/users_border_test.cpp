#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/real.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/harness.h"

// What crosses borders between stages, and which stages there can be, in every schedule.

namespace stagecraft {
namespace {

// Gradients against the cut loop and, as far as no sum is regrouped, the uncut model.
std::string check_both(Pipeline& pipeline, const TestModel& model, const Microbatches& batch) {
  std::string found = check_step(pipeline, model, batch);
  if (!found.empty()) return "cut loop: " + found;
  pipeline.step(batch);
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  train_uncut(model, batch, weight_order(pipeline.recording().schedule), {});
  found = difference("gradient", grads, take_grads(model.bodies));
  return found.empty() ? found : "uncut model: " + found;
}

void check_all_schedules(const std::function<TestModel(int32_t stages)>& make) {
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      if (each.stages() < 2) continue;
      SCOPED_TRACE(to_string(each));
      const TestModel model = make(each.stages());
      Pipeline pipeline = make_pipeline(model, each);
      for (const int64_t rows : {2 * each.microbatches, 3 * each.microbatches - 1}) {
        EXPECT_EQ(check_both(pipeline, model, random_batch(each.microbatches, rows, 5, 1)), "");
      }
      const StepResult result =
          pipeline.eval(random_batch(each.microbatches, 2 * each.microbatches, 5, 1));
      EXPECT_TRUE(result.output.isTensor());
    }
  }
}

// Megatron#5271: with two ranks the next peer is the previous one, and two tensors of different
// shapes go each way.
TEST(UsersBorder, TwoTensorsOfDifferentShapesEachWay) {
  check_all_schedules([](int32_t stages) {
    TestModel model = chain_model(stages);
    for (std::size_t s = 0; s < model.bodies.size(); ++s) {
      const bool is_first = s == 0;
      const bool is_last = s + 1 == model.bodies.size();
      const at::Tensor weight = random_parameter({5, 6}, 100 + s);
      model.bodies[s].parameters.emplace_back("second", weight);
      model.bodies[s].forward = [=, inner = model.bodies[s].forward](
                                    const Args& args, const Kwargs& kwargs) -> c10::IValue {
        const at::Tensor x = args[0].toTensor();
        at::Tensor h = inner({x}, kwargs).toTensor();
        at::Tensor wide = x.mm(weight).view({-1, 3, 2});
        if (!is_first) wide = wide * args[1].toTensor();
        if (is_last) return h + wide.sum(2).sum(1, true);
        return tree::tuple({h, wide});
      };
    }
    return model;
  });
}

// DeepSpeed#969, PiPPy#941: ints, bools, complex numbers, tensors without gradient, None, strings
// and numbers, nested; more than two outputs.
TEST(UsersBorder, AnythingMayCross) {
  check_all_schedules([](int32_t stages) {
    TestModel model = chain_model(stages);
    for (std::size_t s = 0; s < model.bodies.size(); ++s) {
      const bool is_first = s == 0;
      const bool is_last = s + 1 == model.bodies.size();
      model.bodies[s].forward = [=, inner = model.bodies[s].forward](
                                    const Args& args, const Kwargs& kwargs) -> c10::IValue {
        const at::Tensor x = args[0].toTensor();
        at::Tensor h = inner({x}, kwargs).toTensor();
        if (!is_first) {
          EXPECT_EQ(args.size(), 7U);
          const at::Tensor ids = args[1].toTensor();
          EXPECT_EQ(ids.scalar_type(), at::kLong);
          const at::Tensor mask = args[2].toTensor();
          EXPECT_EQ(mask.scalar_type(), at::kBool);
          const at::Tensor number = args[3].toTensor();
          EXPECT_EQ(number.scalar_type(), at::kComplexFloat);
          EXPECT_TRUE(number.requires_grad() || !current_stage() || !current_stage()->is_training);
          const at::Tensor constant = args[4].toTensor();
          EXPECT_FALSE(constant.requires_grad());
          EXPECT_TRUE(args[5].isNone());
          const auto& rest = args[6].toTupleRef().elements();
          EXPECT_EQ(rest[0].toInt(), 7);
          EXPECT_EQ(rest[1].toStringRef(), "seven");
          EXPECT_EQ(rest[2].toDouble(), 7.5);
          EXPECT_TRUE(rest[3].toBool());
          h = at::where(mask, h, h * 0.5) + at::real(number) + constant;
          h = h.index_select(0, ids).index_select(0, ids);
        }
        if (is_last) return h;
        return tree::tuple({h, at::arange(h.size(0) - 1, -1, -1, at::kLong), h.detach().gt(0),
                            at::complex(h * 0.1, h * 0.2), h.detach() * 0.3, c10::IValue(),
                            tree::tuple({7, "seven", 7.5, true})});
      };
    }
    return model;
  });
}

// #152827, #182182: the second tensor is unused by one microbatch, so its gradient is none; in the
// next one it is used.
TEST(UsersBorder, AnInputThatOneMicrobatchDoesNotUse) {
  for (const int32_t unused : {0, 1, -1}) {
    check_all_schedules([unused](int32_t stages) {
      TestModel model = chain_model(stages);
      for (std::size_t s = 0; s < model.bodies.size(); ++s) {
        const bool is_first = s == 0;
        const bool is_last = s + 1 == model.bodies.size();
        const at::Tensor weight = random_parameter({5, 5}, 200 + s);
        model.bodies[s].parameters.emplace_back("second", weight);
        model.bodies[s].forward = [=, inner = model.bodies[s].forward](
                                      const Args& args, const Kwargs& kwargs) -> c10::IValue {
          const at::Tensor x = args[0].toTensor();
          at::Tensor h = inner({x}, kwargs).toTensor();
          const int32_t m = current_stage()->microbatch.value();
          const bool uses = unused == -1 ? m % 2 == 0 : m != unused;
          if (!is_first && uses) h = h + args[1].toTensor();
          if (is_last) return h;
          return tree::tuple({h, x.mm(weight)});
        };
      }
      return model;
    });
  }
}

// And the only one: then nothing at all comes back for that microbatch.
TEST(UsersBorder, AStageThatIgnoresItsInputForOneMicrobatch) {
  check_all_schedules([](int32_t stages) {
    TestModel model = chain_model(stages);
    StageBody& last = model.bodies.back();
    last.forward = [inner = last.forward](const Args& args, const Kwargs& kwargs) {
      const at::Tensor x = args[0].toTensor();
      return inner({current_stage()->microbatch.value() == 1 ? x.detach() : x}, kwargs);
    };
    return model;
  });
}

// #180952: a weight that is used twice on one path, with and without a bias in between.
TEST(UsersBorder, TheSameWeightTwiceInsideAStage) {
  check_all_schedules([](int32_t stages) {
    TestModel model = chain_model(stages);
    for (std::size_t s = 0; s < model.bodies.size(); ++s) {
      const at::Tensor weight = random_parameter({5, 5}, 300 + s);
      const at::Tensor bias = random_parameter({5}, 400 + s);
      model.bodies[s] = stage_body(
          [=](const at::Tensor& x) {
            const at::Tensor h = at::tanh(at::linear(x, weight, bias));
            return at::tanh(at::linear(h, weight, bias)) + at::linear(h, weight);
          },
          {{"weight", weight}, {"bias", bias}});
    }
    return model;
  });
}

// Megatron#1852, #65093, PiPPy#1122: in the first, a middle and the last place.
TEST(UsersBorder, EmptyStagesStagesWithoutParametersAndFrozenOnes) {
  enum class Kind { kEmpty, kWithoutParameters, kFrozen };
  for (const Kind kind : {Kind::kEmpty, Kind::kWithoutParameters, Kind::kFrozen}) {
    for (const int place : {0, 1, 2}) {
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) + ", place " +
                   std::to_string(place));
      check_all_schedules([=](int32_t stages) {
        TestModel model = chain_model(stages);
        const std::size_t s = place == 0   ? 0
                              : place == 1 ? model.bodies.size() / 2
                                           : model.bodies.size() - 1;
        StageBody& body = model.bodies[s];
        switch (kind) {
          case Kind::kEmpty:
            body = stage_body([](const at::Tensor& x) { return x; });
            break;
          case Kind::kWithoutParameters:
            body = stage_body([](const at::Tensor& x) { return at::relu(x); });
            break;
          case Kind::kFrozen:
            for (auto& [name, parameter] : body.parameters) parameter.requires_grad_(false);
        }
        return model;
      });
    }
  }
}

// Nothing to train at all: plain autograd has nothing to differentiate, a pipeline nothing to do.
TEST(UsersBorder, AllStagesFrozen) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    for (const StageParameter& parameter : parameters_of(model.bodies)) {
      parameter.tensor.set_requires_grad(false);
    }
    Pipeline pipeline = make_pipeline(model, each);
    const StepResult result = pipeline.step(random_batch(each.microbatches, 12, 5, 1));
    EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(each.microbatches));
    EXPECT_EQ(num_pending(pipeline), 0U);
  }
}

// #185331: a hook that the user puts on a stage's input, or on what is made of it in place.
TEST(UsersBorder, AHookOnAStageInputFiresOncePerMicrobatch) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    TestModel model = chain_model(each.stages());
    auto counts = std::make_shared<std::vector<std::atomic<int>>>(each.stages());
    for (std::size_t s = 0; s < model.bodies.size(); ++s) {
      model.bodies[s].forward = [=, inner = model.bodies[s].forward](const Args& args,
                                                                     const Kwargs& kwargs) {
        at::Tensor x = args[0].toTensor();
        if (x.requires_grad()) {
          x.register_hook([counts, s](const at::Tensor&) { ++(*counts)[s]; });
        }
        return inner({x}, kwargs);
      };
    }
    Pipeline pipeline = make_pipeline(model, each);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) pipeline.eval(random_batch(each.microbatches, 12, 5, 1));
      for (auto& count : *counts) count = 0;
      pipeline.step(random_batch(each.microbatches, 12 + step, 5, 1));
      EXPECT_EQ((*counts)[0], 0) << "the model's input needs no gradient";
      for (std::size_t s = 1; s < counts->size(); ++s) {
        EXPECT_EQ((*counts)[s], each.microbatches) << "stage " << s << ", step " << step;
      }
    }
    take_grads(model.bodies);
  }
}

// A module may keep its inputs: they are never written again, and never the same memory.
TEST(UsersBorder, AModuleNeverSeesABufferThatIsUsedAgain) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    TestModel model = chain_model(each.stages());
    struct Kept {
      at::Tensor tensor;
      at::Tensor copy;
    };
    auto kept = std::make_shared<std::vector<Kept>>();
    auto mutex = std::make_shared<std::mutex>();
    for (StageBody& body : model.bodies) {
      body.forward = [=, inner = body.forward](const Args& args, const Kwargs& kwargs) {
        const at::Tensor x = args[0].toTensor().detach();
        {
          const std::lock_guard lock(*mutex);
          kept->push_back({x, x.clone()});
        }
        return inner(args, kwargs);
      };
    }
    Pipeline pipeline = make_pipeline(model, each);
    for (uint64_t step = 0; step < 3; ++step) {
      pipeline.step(random_batch(each.microbatches, 12, 5, step));
      pipeline.eval(random_batch(each.microbatches, 12, 5, step + 10));
    }
    std::vector<const void*> places;
    for (const Kept& each_kept : *kept) {
      EXPECT_EQ(difference("input", each_kept.tensor, each_kept.copy), "");
      places.push_back(each_kept.tensor.const_data_ptr());
    }
    std::sort(places.begin(), places.end());
    EXPECT_EQ(std::unique(places.begin(), places.end()), places.end());
    take_grads(model.bodies);
  }
}

// Torch 2.13 rejects them. Here they arrive with the strides that they were sent with, and so do
// their gradients: the uncut model's bits depend on it.
TEST(UsersBorder, ActivationsThatAreNotContiguous) {
  enum class Layout { kTransposed, kExpanded, kNarrowed, kOffset };
  for (const Layout layout :
       {Layout::kTransposed, Layout::kExpanded, Layout::kNarrowed, Layout::kOffset}) {
    SCOPED_TRACE(static_cast<int>(layout));
    auto strides = std::make_shared<std::map<std::pair<int, int>, std::vector<int64_t>>>();
    auto mutex = std::make_shared<std::mutex>();
    check_all_schedules([=](int32_t stages) {
      TestModel model = chain_model(stages);
      for (std::size_t s = 0; s < model.bodies.size(); ++s) {
        const bool is_first = s == 0;
        const bool is_last = s + 1 == model.bodies.size();
        const at::Tensor weight = random_parameter({5, 5}, 500 + s);
        model.bodies[s] = stage_body(
            [=](const at::Tensor& input) -> at::Tensor {
              const StageContext* context = current_stage();
              const std::pair<int, int> key(static_cast<int>(s), context->microbatch.value());
              at::Tensor x = input;
              if (!is_first) {
                {
                  const std::lock_guard lock(*mutex);
                  const std::pair<int, int> previous(key.first - 1, key.second);
                  EXPECT_EQ(x.strides().vec(), (*strides)[previous]);
                }
                switch (layout) {
                  case Layout::kTransposed:
                    x = x.t();
                    break;
                  case Layout::kExpanded:
                    x = x.sum(0);
                    break;
                  case Layout::kNarrowed:
                  case Layout::kOffset:
                    break;
                }
              }
              at::Tensor h = at::tanh(x.mm(weight));
              if (is_last) return h;
              switch (layout) {
                case Layout::kTransposed:
                  h = h.t();
                  break;
                case Layout::kExpanded:
                  h = h.unsqueeze(0).expand({3, -1, -1});
                  break;
                case Layout::kNarrowed:
                  h = at::linear(h, weight.repeat({2, 1})).narrow(1, 2, 5);
                  break;
                case Layout::kOffset:
                  h = at::linear(h, weight.repeat({2, 1})).slice(1, 1, 10, 2);
                  break;
              }
              const std::lock_guard lock(*mutex);
              (*strides)[key] = h.strides().vec();
              return h;
            },
            {{"weight", weight}});
      }
      return model;
    });
  }
}

// In place, on the input and on an intermediate.
TEST(UsersBorder, OperatorsInPlace) {
  check_all_schedules([](int32_t stages) {
    TestModel model = chain_model(stages);
    for (std::size_t s = 1; s < model.bodies.size(); ++s) {
      const at::Tensor weight = random_parameter({5, 5}, 600 + s);
      model.bodies[s] = stage_body(
          [weight](at::Tensor x) {
            x.mul_(1.5);
            at::Tensor h = x.mm(weight);
            h.narrow(1, 0, 2).mul_(2);
            return h.add_(x);
          },
          {{"weight", weight}});
    }
    // Not tanh, whose own output the next stage may not change.
    const at::Tensor weight = random_parameter({5, 5}, 600);
    model.bodies[0] =
        stage_body([weight](const at::Tensor& x) { return x.mm(weight); }, {{"weight", weight}});
    return model;
  });
}

}  // namespace
}  // namespace stagecraft
