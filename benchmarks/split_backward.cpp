// The backward of a stage of width 512 in two halves, I and W, against the whole backward, B: time
// and memory.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "benchmarks/harness.h"
#include "benchmarks/mlp.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/memory_meter.h"
#include "stagecraft/stage/stage.h"

namespace {

using namespace stagecraft;

constexpr int64_t kHidden = 512;
constexpr int64_t kHeads = 8;
const MicrobatchId kMicrobatch(0);

// Attention and a wide MLP, each after a layer norm and with a residual connection.
class Block {
 public:
  Block() {
    const auto add = [&](const char* name, const std::vector<int64_t>& sizes) {
      at::Tensor tensor = at::randn(sizes).mul_(0.02);
      parameters_.emplace_back(name, tensor.requires_grad_(true));
    };
    for (const char* name : {"norm1", "norm1_bias", "norm2", "norm2_bias"}) add(name, {kHidden});
    add("qkv", {3 * kHidden, kHidden});
    add("qkv_bias", {3 * kHidden});
    add("out", {kHidden, kHidden});
    add("out_bias", {kHidden});
    add("up", {4 * kHidden, kHidden});
    add("up_bias", {4 * kHidden});
    add("down", {kHidden, 4 * kHidden});
    add("down_bias", {kHidden});
  }

  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor seen = at::layer_norm(x, {kHidden}, parameter(0), parameter(1));
    const std::vector<at::Tensor> qkv =
        at::chunk(at::linear(seen, parameter(4), parameter(5)), 3, -1);
    const auto heads = [](const at::Tensor& t) {
      return t.view({t.size(0), t.size(1), kHeads, kHidden / kHeads}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]))
            .transpose(1, 2)
            .reshape(x.sizes());
    const at::Tensor y = at::add(x, at::linear(mixed, parameter(6), parameter(7)));
    const at::Tensor normed = at::layer_norm(y, {kHidden}, parameter(2), parameter(3));
    const at::Tensor wide = at::gelu(at::linear(normed, parameter(8), parameter(9)));
    return at::add(y, at::linear(wide, parameter(10), parameter(11)));
  }

  const NamedTensors& parameters() const { return parameters_; }

 private:
  const at::Tensor& parameter(std::size_t i) const { return parameters_[i].second; }

  NamedTensors parameters_;
};

// A stage in the middle of a pipeline: its input needs a gradient and its output gets one. Input
// and gradient belong to the caller, so they count neither as time nor as memory.
class Subject {
 public:
  template <typename Body>
  Subject(std::string name, const Body& body, const std::vector<int64_t>& sizes)
      : name_(std::move(name)),
        stage_(StageId(1), 3, stage_body(body, body.parameters())),
        x_(at::randn(sizes).requires_grad_(true)),
        grad_(at::randn(sizes)) {}

  const std::string& name() const { return name_; }
  void forward() { stage_.forward(kMicrobatch, {{x_}, {}}); }
  void whole() { stage_.backward(kMicrobatch, {grad_}); }
  void input() { stage_.backward_input(kMicrobatch, {grad_}); }
  void weight() { stage_.backward_weight(kMicrobatch); }

 private:
  std::string name_;
  Stage stage_;
  at::Tensor x_;
  at::Tensor grad_;
};

// Times the backward only. Each backward needs a new forward.
template <typename Backward>
bench::Timed after_forward(Subject& subject, Backward backward) {
  return [&subject, backward](int iterations) {
    double seconds = 0;
    for (int i = 0; i < iterations; ++i) {
      subject.forward();
      const auto start = std::chrono::steady_clock::now();
      backward(subject);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    return seconds;
  };
}

void compare_time(bench::Suite& suite, Subject& subject) {
  const auto split = [](Subject& s) {
    s.input();
    s.weight();
  };
  const auto whole = [](Subject& s) { s.whole(); };
  suite.compare(subject.name() + ", I + W", after_forward(subject, split),
                {{"B", after_forward(subject, whole), 1.15}});
  suite.compare(subject.name() + ", F + I + W", bench::timed([&] {
                  subject.forward();
                  split(subject);
                }),
                {{"F + B", bench::timed([&] {
                    subject.forward();
                    whole(subject);
                  }),
                  std::nullopt, true}});
}

void report_memory(bench::Suite& suite, Subject& subject) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  const auto report = [&](const char* what, int64_t bytes) {
    suite.report(
        {fmt::format("{}, {}", subject.name(), what), static_cast<double>(bytes) / 1024, "KiB"});
  };
  const auto peak_of = [&](auto work) {
    meter.reset_peak(0);
    work();
    return meter.peak(0);
  };
  subject.forward();
  report("held after F", meter.current(0));
  report("peak of B", peak_of([&] { subject.whole(); }));
  report("held after B", meter.current(0));
  subject.forward();
  report("peak of I", peak_of([&] { subject.input(); }));
  report("held after I", meter.current(0));
  report("peak of W", peak_of([&] { subject.weight(); }));
  report("held after W", meter.current(0));
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  std::vector<Subject> subjects;
  for (const int64_t rows : {2, 64}) {
    subjects.emplace_back(fmt::format("MLP, {} rows", rows), bench::Mlp(kHidden),
                          std::vector<int64_t>{rows, kHidden});
  }
  subjects.emplace_back("attention block, 2 x 64 rows", Block(),
                        std::vector<int64_t>{2, 64, kHidden});
  for (Subject& subject : subjects) {
    compare_time(suite, subject);
    report_memory(suite, subject);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("split_backward", argc, argv, measure);
}
