#include "stagecraft/train/state_dict.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/train/model_state.h"
#include "stagecraft/train/state_file.h"
#include "tests/support/expect_error.h"
#include "tests/train/python.h"

namespace stagecraft {

namespace {

namespace fs = std::filesystem;
using at::Tensor;

/// A tied weight, one of another dtype, a buffer that is saved and one that is not.
Graph make_graph(int64_t seed) {
  return parse_graph(R"(graph exported
size B = 4, at least 1
parameter %embed.weight: float32[3, 3], also %head.weight
parameter %middle.weight: float64[3, 3]
buffer %norm.mean: float32[3]
buffer %mask: float32[3], not saved
constant %two: float32[3]
args (%x: float32[B, 3],)
kwargs {}
%mm = aten::mm(self=%x, mat2=%embed.weight): float32[B, 3]
%sub = aten::sub.Tensor(self=%mm, other=%norm.mean, alpha=1): float32[B, 3]
%to = aten::to.dtype(self=%sub, dtype=float64, non_blocking=False, copy=False, memory_format=None): float64[B, 3]
%mm_1 = aten::mm(self=%to, mat2=%middle.weight): float64[B, 3]
%back = aten::to.dtype(self=%mm_1, dtype=float32, non_blocking=False, copy=False, memory_format=None): float32[B, 3]
%mul = aten::mul.Tensor(self=%back, other=%mask): float32[B, 3]
%mul_1 = aten::mul.Tensor(self=%mul, other=%two): float32[B, 3]
%mm_2 = aten::mm(self=%mul_1, mat2=%embed.weight): float32[B, 3]
return %mm_2
)",
                     [&](const std::string& name) {
                       if (name == "two") return at::full({3}, 2.0F);
                       if (name == "mask") return at::ones({3});
                       if (name == "norm.mean") return at::full({3}, seed, at::kFloat);
                       const bool is_wide = name == "middle.weight";
                       return (at::arange(9).view({3, 3}).t() + seed)
                           .to(is_wide ? at::kDouble : at::kFloat)
                           .requires_grad_();
                     });
}

Pipe make_pipe(int64_t seed, int32_t stages,
               SharedParameter sharing = SharedParameter::kReplicate) {
  return Pipe(make_graph(seed), {.policy = equal_operators(stages)}, {.by_default = sharing});
}

std::vector<Tensor> values_of(const Pipe& pipe) {
  std::vector<Tensor> values;
  for (const ModelState& state : model_states(pipe)) {
    for (const Tensor& copy : state.copies) values.push_back(copy.detach().clone());
  }
  return values;
}

class StateDict : public testing::Test {
 protected:
  StateDict() {
    folder_ = testing::TempDir() + "state_dict_test" + std::to_string(::getpid());
    fs::create_directories(folder_);
  }
  ~StateDict() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// Expects that the file is refused and that nothing has changed.
  template <typename Error>
  void expect_refused(const std::string& name, const std::string& says) const {
    const Pipe pipe = make_pipe(5, 3);
    const std::vector<Tensor> before = values_of(pipe);
    EXPECT_ERROR(load_state_dict(pipe, path(name)), Error, says);
    const std::vector<Tensor> after = values_of(pipe);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i].equal(before[i])) << name;
  }

  std::string folder_;
};

NamedTensors contents() {
  return {{"embed.weight", at::ones({3, 3})},
          {"head.weight", at::ones({3, 3})},
          {"middle.weight", at::ones({3, 3}, at::kDouble)},
          {"norm.mean", at::ones({3})}};
}

}  // namespace

TEST_F(StateDict, HasEveryNameOfWhatIsSaved) {
  for (const int32_t stages : {1, 3}) {
    save_state_dict(make_pipe(1, stages), path("weights.pt"));
    std::set<std::string> names;
    for (const auto& [name, tensor] : detail::read_tensor_file(path("weights.pt"))) {
      names.insert(name);
      EXPECT_FALSE(tensor.requires_grad());
    }
    EXPECT_EQ(names,
              (std::set<std::string>{"embed.weight", "head.weight", "middle.weight", "norm.mean"}));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(StateDict, GoesIntoAnotherCut) {
  const Tensor x = at::ones({2, 3});
  for (const SharedParameter sharing : {SharedParameter::kReplicate, SharedParameter::kTransmit}) {
    for (const int32_t stages : {1, 2, 4}) {
      const Pipe from = make_pipe(1, 3);
      const Pipe to = make_pipe(9, stages, sharing);
      EXPECT_FALSE(to.run({x}).toTensor().equal(from.run({x}).toTensor()));
      save_state_dict(from, path("weights.pt"));
      load_state_dict(to, path("weights.pt"));
      EXPECT_TRUE(to.run({x}).toTensor().equal(from.run({x}).toTensor()));
      for (const ModelState& state : model_states(to)) {
        for (const Tensor& copy : state.copies) EXPECT_TRUE(copy.equal(state.tensor()));
        EXPECT_EQ(state.tensor().requires_grad(), state.is_parameter);
      }
    }
  }
}

TEST_F(StateDict, IsReadAndWrittenByPython) {
  save_state_dict(make_pipe(1, 3), path("weights.pt"));
  run_python(R"(
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(3, 3, bias=False)
        self.middle = torch.nn.Linear(3, 3, bias=False, dtype=torch.float64)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.Module()
        self.norm.register_buffer("mean", torch.zeros(3))

for weights_only in (True, False):
    model = Model()
    read = torch.load("weights.pt", weights_only=weights_only)
    assert type(read) is dict, type(read)
    model.load_state_dict(read, strict=True)
    expected = torch.arange(9.0).view(3, 3).t() + 1
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.equal(expected), model.embed.weight
    assert model.middle.weight.equal(expected.double())
    assert model.norm.mean.equal(torch.ones(3))
with torch.no_grad():
    model.embed.weight.mul_(2)
    model.norm.mean.fill_(7)
torch.save(model.state_dict(), "ordered.pt")
torch.save(dict(model.state_dict()), "back.pt")
torch.save(model.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
torch.save([1, 2], "list.pt")
torch.save({"a": 3}, "number.pt")
)",
             folder_);
  const Pipe pipe = make_pipe(5, 2);
  load_state_dict(pipe, path("back.pt"));
  const std::vector<ModelState> states = model_states(pipe);
  ASSERT_EQ(states.size(), 3U);
  const Tensor written = at::arange(9, at::kFloat).view({3, 3}).t() + 1;
  for (const Tensor& copy : states[0].copies) EXPECT_TRUE(copy.equal(written * 2));
  EXPECT_TRUE(states[1].tensor().equal(written.to(at::kDouble)));
  EXPECT_TRUE(states[2].tensor().equal(at::full({3}, 7.0F)));
  expect_refused<FileError>(
      "ordered.pt",
      "it is an OrderedDict, as state_dict() returns it; save dict(...) of it instead");
  expect_refused<FileError>("old.pt", "old.pt: not a file of named tensors");
  expect_refused<FileError>("list.pt",
                            "list.pt: not a file of named tensors: expected a dict, got");
  expect_refused<FileError>("number.pt",
                            "number.pt: not a file of named tensors: expected names "
                            "and tensors, got");
}

// A run that diverged leaves such weights, and at::equal says that they differ from themselves.
TEST_F(StateDict, LoadsWeightsThatAreNotANumber) {
  NamedTensors tensors = contents();
  for (auto& [name, tensor] : tensors) {
    if (name == "embed.weight" || name == "head.weight") {
      tensor = at::full_like(tensor, std::numeric_limits<double>::quiet_NaN());
    }
  }
  detail::write_tensor_file(path("nan.pt"), tensors);
  const Pipe pipe = make_pipe(5, 3);
  load_state_dict(pipe, path("nan.pt"));
  for (const ModelState& state : model_states(pipe)) {
    if (state.name != "embed.weight") continue;
    for (const Tensor& copy : state.copies) EXPECT_TRUE(copy.isnan().all().item<bool>());
  }
}

TEST_F(StateDict, ChangesNothingWhenItDoesNotFit) {
  auto write = [&](const NamedTensors& tensors) {
    detail::write_tensor_file(path("other.pt"), tensors);
  };
  for (std::size_t i = 0; i < contents().size(); ++i) {
    NamedTensors missing = contents();
    const std::string name = missing[i].first;
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    write(missing);
    expect_refused<MetadataError>("other.pt", path("other.pt") + " has no " + name);
    NamedTensors shaped = contents();
    shaped[i].second = at::ones({3, 4}, shaped[i].second.options());
    write(shaped);
    expect_refused<MetadataError>("other.pt", name + ": expected Tensor[3");
    NamedTensors typed = contents();
    typed[i].second = typed[i].second.to(at::kHalf);
    write(typed);
    expect_refused<MetadataError>("other.pt", "has Tensor[3");
  }
  NamedTensors two = contents();
  for (auto& [name, tensor] : two) {
    if (name == "head.weight") tensor = tensor + 1;
  }
  write(two);
  expect_refused<MetadataError>("other.pt", "embed.weight and head.weight are the same tensor");
  NamedTensors more = contents();
  more.emplace_back("mask", at::ones({3}));
  write(more);
  expect_refused<MetadataError>("other.pt", "other.pt has mask, which this model does not have");
}

TEST_F(StateDict, SaysWhenAFileIsNone) {
  expect_refused<FileError>("nothing.pt", path("nothing.pt") + ": ");
  save_state_dict(make_pipe(1, 3), path("weights.pt"));
  const auto size = fs::file_size(path("weights.pt"));
  for (const auto kept : {size - 1, size / 2, std::uintmax_t{10}, std::uintmax_t{0}}) {
    fs::copy_file(path("weights.pt"), path("cut.pt"), fs::copy_options::overwrite_existing);
    fs::resize_file(path("cut.pt"), kept);
    expect_refused<FileError>("cut.pt", path("cut.pt") + ": not a file of named tensors");
  }
  std::ofstream(path("text.pt")) << "no archive at all, but a line of text";
  expect_refused<FileError>("text.pt", path("text.pt") + ": not a file of named tensors");
  expect_refused<FileError>("", folder_ + "/: ");
}

TEST_F(StateDict, LeavesNothingWhereItCannotWrite) {
  const Pipe pipe = make_pipe(1, 2);
  EXPECT_ERROR(save_state_dict(pipe, path("no/folder/weights.pt")), FileError,
               "weights.pt.unfinished: cannot be written: No such file or directory");
  fs::create_directories(path("taken/inside"));
  EXPECT_ERROR(save_state_dict(pipe, path("taken")), FileError,
               path("taken") + ": cannot be written: Is a directory");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  // One that is there already is replaced.
  std::ofstream(path("weights.pt")) << "old";
  save_state_dict(pipe, path("weights.pt"));
  load_state_dict(pipe, path("weights.pt"));
}

}  // namespace stagecraft
