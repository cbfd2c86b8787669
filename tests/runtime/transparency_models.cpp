#include "tests/runtime/transparency_models.h"

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

constexpr int64_t kIn = 5;
constexpr int64_t kModelWidth = 7;
constexpr int64_t kOut = 3;

// Of what the values of a parameter depend on, besides its own number.
constexpr uint64_t kParameterSeed = 2024;

at::Tensor parameter(std::vector<int64_t> sizes, int32_t stage, uint64_t number) {
  const RandomScope random(mix_seed(kParameterSeed, 0, number, static_cast<uint64_t>(stage)));
  return at::randn(sizes).mul_(0.4).requires_grad_();
}

struct Layer {
  Layer(int64_t in, int64_t out, int32_t stage, uint64_t number = 0)
      : weight(parameter({out, in}, stage, 2 * number)),
        bias(parameter({out}, stage, 2 * number + 1)) {}

  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  void add_to(NamedTensors& parameters) const {
    const std::string number = std::to_string(parameters.size());
    parameters.emplace_back("weight" + number, weight);
    parameters.emplace_back("bias" + number, bias);
  }

  at::Tensor weight;
  at::Tensor bias;
};

NamedTensors names_of(std::initializer_list<Layer> layers) {
  NamedTensors parameters;
  for (const Layer& layer : layers) layer.add_to(parameters);
  return parameters;
}

int64_t width_in(int32_t stage) {
  return stage == 0 ? kIn : kModelWidth;
}

int64_t width_out(int32_t stage, int32_t stages) {
  return stage + 1 == stages ? kOut : kModelWidth;
}

at::Tensor mse(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

// The parts of a tuple that match the target are compared with it, all others kept small.
at::Tensor loss_of_all(const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
  const at::Tensor wanted = target.toTensor();
  at::Tensor loss;
  for (const c10::IValue& leaf : tree::leaves(output)) {
    const at::Tensor& tensor = leaf.toTensor();
    const at::Tensor part =
        tensor.sizes() == wanted.sizes() ? at::mse_loss(tensor, wanted) : tensor.pow(2).mean();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

TestModel with_chain(int32_t stages) {
  TestModel model;
  model.ports = Ports(stages);
  model.loss = mse;
  return model;
}

TestModel make_chain(int32_t stages) {
  TestModel model = with_chain(stages);
  for (int32_t s = 0; s < stages; ++s) {
    const Layer layer(width_in(s), width_out(s, stages), s);
    model.bodies.push_back(
        stage_body([layer](const at::Tensor& x) { return at::tanh(layer(x)); }, names_of({layer})));
  }
  return model;
}

TestModel make_dropout(int32_t stages) {
  TestModel model = with_chain(stages);
  for (int32_t s = 0; s < stages; ++s) {
    const Layer layer(width_in(s), width_out(s, stages), s);
    model.bodies.push_back(stage_body(
        [layer](const at::Tensor& x) {
          return at::dropout(at::tanh(layer(at::dropout(x, 0.2, true))), 0.3, true);
        },
        names_of({layer})));
  }
  return model;
}

// Every stage's output is read by the next stage and by later ones, over one stage or two.
//
// The sum of the gradients is made at the border, the last stage's first: just as in the uncut
// model, where the operators of later stages run first in the backward. That holds as long as each
// reads it once. One that reads it `times` = 2 gives the border the sum of its own two, (c + (a +
// b)), and the uncut model adds them one by one, ((c + a) + b).
TestModel make_skips(int32_t stages, bool over_one, bool over_two, int32_t times = 1) {
  TestModel model = with_chain(stages);
  for (int32_t s = 0; s < stages; ++s) {
    const Layer layer(width_in(s), kModelWidth, s);
    const Layer head(kModelWidth, kOut, s, 1);
    const bool is_last = s + 1 == stages;
    model.bodies.push_back(stage_body(
        [layer, head, is_last, times](const at::Tensor& x, const at::Tensor& one,
                                      const at::Tensor& two) {
          at::Tensor h = layer(x);
          if (times == 2) h = h + x.mean(-1, true);
          if (one.defined()) h = h + one * 0.5;
          if (one.defined() && times == 2) h = h * (one + 2);
          if (two.defined()) h = h - two * 0.25;
          h = at::tanh(h);
          return is_last ? head(h) : h;
        },
        is_last ? names_of({layer, head}) : names_of({layer}), {"x", "one", "two"}));
    auto connect = [&](int32_t to, const char* name) {
      if (to < stages) model.ports.connect({StageId(s), 0}, {StageId(to), 0, name});
    };
    connect(s + 1, "x");
    if (over_one) connect(s + 2, "one");
    if (over_two) connect(s + 3, "two");
  }
  return model;
}

TestModel make_skip_one(int32_t stages) {
  return make_skips(stages, true, false);
}
TestModel make_skip_two(int32_t stages) {
  return make_skips(stages, false, true);
}
TestModel make_skip_both(int32_t stages) {
  return make_skips(stages, true, true);
}
TestModel make_skip_read_twice(int32_t stages) {
  return make_skips(stages, true, false, 2);
}

// Stage 0 embeds with a weight, which goes to the last stage as a value and is used there, too. Its
// two gradients meet in one backward of stage 0, the last stage's first, as in the uncut model.
TestModel make_tied(int32_t stages) {
  TestModel model = make_chain(stages);
  const at::Tensor shared = parameter({kIn, kModelWidth}, 0, 100);
  model.bodies.front() = stage_body(
      [shared](const at::Tensor& x) { return std::make_tuple(at::tanh(x.mm(shared)), shared); },
      {{"shared", shared}});
  const Layer layer(kModelWidth, kModelWidth, stages - 1);
  const Layer head(kIn, kOut, stages - 1, 1);
  model.bodies.back() = stage_body(
      [layer, head](const at::Tensor& x, const at::Tensor& weight) {
        return head(at::tanh(layer(x)).mm(weight.t()));
      },
      names_of({layer, head}), {"x", "weight"});
  model.ports.connect({StageId(0), 1}, {StageId(stages - 1), 0, "weight"});
  return model;
}

// The same model with a copy of the weight on the last stage. The uncut model adds its two
// gradients for each microbatch, the pipeline those of all microbatches on each stage first.
TestModel make_tied_copies(int32_t stages) {
  TestModel model = make_chain(stages);
  const at::Tensor shared = parameter({kIn, kModelWidth}, 0, 100);
  const at::Tensor copy = shared.detach().clone().requires_grad_();
  const Layer layer(kModelWidth, kModelWidth, stages - 1);
  const Layer head(kIn, kOut, stages - 1, 1);
  model.bodies.front() = stage_body(
      [shared](const at::Tensor& x) { return at::tanh(x.mm(shared)); }, {{"shared", shared}});
  auto last = [&](const at::Tensor& weight) {
    NamedTensors parameters = names_of({layer, head});
    parameters.emplace_back("shared", weight);
    return stage_body([layer, head, weight](
                          const at::Tensor& x) { return head(at::tanh(layer(x)).mm(weight.t())); },
                      std::move(parameters));
  };
  model.plain_bodies = model.bodies;
  model.plain_bodies.back() = last(shared);
  model.bodies.back() = last(copy);
  model.ties = {{{StageId(0), "shared"}, {StageId(stages - 1), "shared"}}};
  return model;
}

// The second output travels with its strides: the next stage sees a transposed tensor.
TestModel make_several_outputs(int32_t stages) {
  TestModel model = with_chain(stages);
  model.loss = Loss(loss_of_all);
  for (int32_t s = 0; s < stages; ++s) {
    const Layer wide(width_in(s), width_out(s, stages), s);
    const Layer narrow(s == 0 ? kIn : 3, 3, s, 1);
    model.bodies.push_back(stage_body(
        [wide, narrow](const at::Tensor& x, const at::Tensor& second) {
          const at::Tensor b = narrow(second.defined() ? second.t() : x);
          return std::make_tuple(at::tanh(wide(x)) + b.sum(-1, true), b.t());
        },
        names_of({wide, narrow})));
  }
  return model;
}

// Of three outputs the next stage reads one always, one never, and one for odd microbatches.
TestModel make_none_grads(int32_t stages) {
  TestModel model = with_chain(stages);
  for (int32_t s = 0; s < stages; ++s) {
    const Layer a(width_in(s), width_out(s, stages), s);
    const Layer b(width_in(s), kModelWidth, s, 1);
    const Layer c(width_in(s), kModelWidth, s, 2);
    const bool is_last = s + 1 == stages;
    model.bodies.push_back(stage_body(
        [a, b, c, is_last](const at::Tensor& x, const at::Tensor&,
                           const at::Tensor& sometimes) -> c10::IValue {
          at::Tensor h = x;
          if (sometimes.defined() && current_stage()->microbatch.value() % 2 == 1) {
            h = h + sometimes;
          }
          if (is_last) return at::tanh(a(h));
          return std::make_tuple(at::tanh(a(h)), b(h), c(h));
        },
        is_last ? names_of({a}) : names_of({a, b, c})));
  }
  return model;
}

constexpr double kRegrouped = 1e-6;

constexpr std::array kShapes = {
    ModelShape{"chain", 1, make_chain},
    ModelShape{"skip over one stage", 3, make_skip_one},
    ModelShape{"skip over two stages", 4, make_skip_two},
    ModelShape{"skips over one stage and over two", 4, make_skip_both},
    ModelShape{"skip read twice", 3, make_skip_read_twice, kRegrouped},
    ModelShape{"tied weight sent as a value", 2, make_tied},
    ModelShape{"tied weight as copies", 2, make_tied_copies, kRegrouped},
    ModelShape{"several outputs", 1, make_several_outputs},
    ModelShape{"uneven microbatches", 1, make_chain, 0, true},
    ModelShape{"no gradient for some outputs", 1, make_none_grads},
    ModelShape{"dropout", 1, make_dropout},
};

}  // namespace

std::span<const ModelShape> model_shapes() {
  return kShapes;
}

at::Tensor input_of(int32_t m, int64_t rows) {
  const RandomScope random(mix_seed(1, 2, 3, static_cast<uint64_t>(m)));
  return at::randn({rows, kIn});
}

at::Tensor target_of(int32_t m, int64_t rows) {
  const RandomScope random(mix_seed(1, 2, 4, static_cast<uint64_t>(m)));
  return at::randn({rows, kOut});
}

}  // namespace stagecraft
