#include "tests/support/models.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/linear_dw.h"

namespace stagecraft::models {

namespace {

using torch::nn::Linear;

at::Tensor mse(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

StageId id_of(int32_t stage) {
  return StageId(stage);
}

template <typename M>
void finish(WholeModel& model, const std::shared_ptr<M>& module, std::vector<std::string> names) {
  model.stages.loss = mse;
  model.module = module;
  model.forward = stage_body(module, std::move(names)).forward;
}

NamedTensors select(const torch::nn::Module& module, const std::vector<std::string>& prefixes) {
  NamedTensors chosen;
  for (const auto& item : module.named_parameters()) {
    for (const std::string& prefix : prefixes) {
      if (item.key().starts_with(prefix)) chosen.emplace_back(item.key(), item.value());
    }
  }
  return chosen;
}

// What is alive between the pieces of ExampleCode.
struct Live {
  at::Tensor x;
  at::Tensor skip;     // from piece 0 to piece 2
  at::Tensor weight0;  // from piece 0 to piece 1
};

struct ExampleCode : torch::nn::Module {
  static constexpr int32_t kPieces = 8;

  explicit ExampleCode(int64_t width) {
    weight0 = register_parameter("weight0", torch::randn({width, width}) * 0.3);
    weight1 = register_parameter("weight1", torch::randn({width, width}) * 0.3);
    weight2 = register_parameter("weight2", torch::randn({width, width}) * 0.3);
    constant = register_buffer("constant", torch::randn({width}));
    for (int i = 0; i < 4; ++i) {
      linears.push_back(register_module("linear" + std::to_string(i), Linear(width, width)));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    Live live{.x = x, .skip = {}, .weight0 = {}};
    for (int32_t piece = 0; piece < kPieces; ++piece) run(piece, live);
    return live.x;
  }

  void run(int32_t piece, Live& live) {
    switch (piece) {
      case 0:
        live.weight0 = weight0;
        live.skip = live.x.mm(weight0);
        live.x = at::relu(live.skip);
        return;
      case 1:
        live.x = linears[0]->forward(live.x.mm(live.weight0) + constant);
        return;
      case 2:
        live.x = (at::relu(live.x) + live.skip).mm(weight1);
        return;
      case 3:
        live.x = at::tanh(linears[1]->forward(live.x));
        return;
      case 4:
        live.x = at::relu(live.x.mm(weight2));
        return;
      case 5:
        live.x = at::sigmoid(linears[2]->forward(live.x));
        return;
      case 6:
        live.x = live.x + at::tanh(live.x);
        return;
      default:
        live.x = linears[3]->forward(live.x);
    }
  }

  static std::vector<std::string> names_of(int32_t piece) {
    static const std::vector<std::vector<std::string>> kNames = {
        {"weight0"}, {"linear0"}, {"weight1"}, {"linear1"},
        {"weight2"}, {"linear2"}, {},          {"linear3"}};
    return kNames[static_cast<std::size_t>(piece)];
  }

  at::Tensor weight0, weight1, weight2, constant;
  std::vector<Linear> linears;
};

struct ModelWithKwargs : torch::nn::Module {
  explicit ModelWithKwargs(int64_t width)
      : linear0(register_module("linear0", Linear(width, width))),
        linear1(register_module("linear1", Linear(width, width))) {
    weight0 = register_parameter("weight0", torch::randn({width, width}) * 0.3);
    weight1 = register_parameter("weight1", torch::randn({width, width}) * 0.3);
  }

  at::Tensor first(const at::Tensor& x, const at::Tensor& y) {
    at::Tensor h = x.mm(weight0);
    if (y.defined()) h = h + y;
    return linear0->forward(at::relu(h));
  }
  at::Tensor second(const at::Tensor& x) { return linear1->forward(at::relu(x.mm(weight1))); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return second(first(x, y)); }

  Linear linear0, linear1;
  at::Tensor weight0, weight1;
};

struct ModelWithParamAlias : torch::nn::Module {
  explicit ModelWithParamAlias(int64_t width)
      : linear0(register_module("linear0", Linear(width, width))),
        linear1(register_module("linear1", Linear(width, width))) {
    weight = register_parameter("weight", torch::randn({width, width}) * 0.3);
  }

  at::Tensor first(const at::Tensor& x) { return linear0->forward(at::relu(x.mm(weight))); }
  at::Tensor second(const at::Tensor& x) { return linear1->forward(at::relu(x.mm(weight))); }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }

  Linear linear0, linear1;
  at::Tensor weight;
};

struct Mlp : torch::nn::Module {
  explicit Mlp(int64_t width)
      : linear0(register_module("linear0", Linear(width, width))),
        linear1(register_module("linear1", Linear(width, width))) {}

  at::Tensor forward(const at::Tensor& x) {
    return linear1->forward(at::relu(linear0->forward(x)));
  }

  Linear linear0, linear1;
};

struct MultiMlp : torch::nn::Module {
  MultiMlp(int64_t width, int32_t layers)
      : list(register_module("layers", torch::nn::ModuleList())) {
    for (int32_t i = 0; i < layers; ++i) {
      mlps.push_back(std::make_shared<Mlp>(width));
      list->push_back(mlps.back());
    }
  }

  at::Tensor forward(at::Tensor x, const at::Tensor& bias) {
    if (bias.defined()) x = x + bias.mean();
    for (const auto& layer : mlps) x = layer->forward(x);
    return x;
  }

  torch::nn::ModuleList list;
  std::vector<std::shared_ptr<Mlp>> mlps;
};

std::string prefix_of(int32_t layer) {
  return "layers." + std::to_string(layer) + ".";
}

WholeModel make_multi_mlp(int64_t width, int32_t stages, uint64_t seed, bool takes_bias) {
  const RandomScope random(seed);
  auto module = std::make_shared<MultiMlp>(width, stages);
  WholeModel model;
  for (int32_t s = 0; s < stages; ++s) {
    const auto layer = module->mlps[static_cast<std::size_t>(s)];
    const NamedTensors parameters = select(*module, {prefix_of(s)});
    if (s == 0 && takes_bias) {
      model.stages.bodies.push_back(stage_body(
          [layer](const at::Tensor& x, const at::Tensor& bias) {
            return layer->forward(bias.defined() ? x + bias.mean() : x);
          },
          parameters, {"x", "bias"}));
    } else {
      model.stages.bodies.push_back(
          stage_body([layer](const at::Tensor& x) { return layer->forward(x); }, parameters));
    }
  }
  model.stages.ports = Ports(stages);
  finish(model, module, {"x", "bias"});
  return model;
}

}  // namespace

WholeModel example_code(int64_t width, int32_t stages, uint64_t seed) {
  const RandomScope random(seed);
  auto module = std::make_shared<ExampleCode>(width);
  // One piece each, the last stage has the rest.
  auto stage_of = [&](int32_t piece) { return std::min(piece, stages - 1); };

  WholeModel model;
  model.stages.ports = Ports(stages);
  int32_t output = 1;
  if (stage_of(2) != 0) {
    model.stages.ports.connect({id_of(0), output++}, {id_of(stage_of(2)), 0, "skip"});
    model.stages.ports.connect({id_of(0), output++}, {id_of(stage_of(1)), 0, "weight0"});
  }
  for (int32_t s = 0; s < stages; ++s) {
    std::vector<int32_t> pieces;
    std::vector<std::string> names;
    for (int32_t piece = 0; piece < ExampleCode::kPieces; ++piece) {
      if (stage_of(piece) != s) continue;
      pieces.push_back(piece);
      std::ranges::copy(ExampleCode::names_of(piece), std::back_inserter(names));
    }
    const bool sends = s == 0 && stages > 1;
    model.stages.bodies.push_back(stage_body(
        [module, pieces, sends](const Args& args, const Kwargs& kwargs) -> c10::IValue {
          auto find = [&](const char* name) {
            const c10::IValue* found = kwargs.find(name);
            return found == nullptr ? at::Tensor() : found->toTensor();
          };
          Live live{.x = args.at(0).toTensor(), .skip = find("skip"), .weight0 = find("weight0")};
          for (const int32_t piece : pieces) module->run(piece, live);
          if (!sends) return live.x;
          return tree::tuple({live.x, live.skip, live.weight0});
        },
        select(*module, names)));
  }
  finish(model, module, {"x"});
  return model;
}

WholeModel model_with_kwargs(int64_t width, uint64_t seed) {
  const RandomScope random(seed);
  auto module = std::make_shared<ModelWithKwargs>(width);
  WholeModel model;
  model.stages.ports = Ports(2);
  model.stages.bodies = {
      stage_body([module](const at::Tensor& x, const at::Tensor& y) { return module->first(x, y); },
                 select(*module, {"weight0", "linear0"}), {"x", "y"}),
      stage_body([module](const at::Tensor& x) { return module->second(x); },
                 select(*module, {"weight1", "linear1"}))};
  finish(model, module, {"x", "y"});
  return model;
}

WholeModel model_with_param_alias(int64_t width, uint64_t seed) {
  const RandomScope random(seed);
  auto module = std::make_shared<ModelWithParamAlias>(width);
  WholeModel model;
  model.stages.ports = Ports(2);
  model.stages.bodies = {stage_body([module](const at::Tensor& x) { return module->first(x); },
                                    select(*module, {"weight", "linear0"})),
                         stage_body([module](const at::Tensor& x) { return module->second(x); },
                                    select(*module, {"weight", "linear1"}))};
  model.stages.bodies[1].parameters[0].first = "weight_again";
  finish(model, module, {"x"});
  return model;
}

WholeModel mlp(int64_t width, uint64_t seed) {
  const RandomScope random(seed);
  auto module = std::make_shared<Mlp>(width);
  WholeModel model;
  model.stages.bodies = {stage_body(module)};
  finish(model, module, {"x"});
  return model;
}

WholeModel multi_mlp(int64_t width, int32_t stages, uint64_t seed) {
  return make_multi_mlp(width, stages, seed, false);
}

WholeModel multi_mlp_kwargs(int64_t width, int32_t stages, uint64_t seed) {
  return make_multi_mlp(width, stages, seed, true);
}

WholeModel multi_mlp_with_dw(int64_t width, int32_t stages, uint64_t seed) {
  WholeModel model = make_multi_mlp(width, stages, seed, false);
  model.stages.plain_bodies = model.stages.bodies;
  for (StageBody& body : model.stages.bodies) {
    // In the order of the names: linear0.weight, linear0.bias, linear1.weight, linear1.bias.
    const NamedTensors& p = body.parameters;
    auto first = std::make_shared<LinearDw>(p[0].second, p[1].second);
    auto second = std::make_shared<LinearDw>(p[2].second, p[3].second);
    body.forward = stage_body([first, second](const at::Tensor& x) {
                     return second->forward(at::relu(first->forward(x)));
                   }).forward;
    model.stages.options.push_back({.weight_work = [first, second] {
      return [one = second->take_work(), two = first->take_work()] {
        one();
        two();
      };
    }});
  }
  return model;
}

}  // namespace stagecraft::models
