#include "stagecraft/train/tensor_data.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/train/python.h"

namespace stagecraft {

namespace {

namespace fs = std::filesystem;

/// Row r of "x" is r, r + 0.5, and row r of "y" is -r.
NamedTensors counting_rows(int64_t rows) {
  const at::Tensor numbers = at::arange(rows, at::kFloat);
  return {{"x", at::stack({numbers, numbers + 0.5}, 1)}, {"y", -at::arange(rows)}};
}

/// The numbers of the rows that come, which must belong together.
std::vector<int64_t> drawn(TensorRows& rows, int64_t count) {
  const NamedTensors batch = rows.draw(count);
  EXPECT_EQ(batch.size(), 2U);
  EXPECT_EQ(batch[0].first, "x");
  EXPECT_EQ(batch[1].first, "y");
  const at::Tensor x = batch[0].second;
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{count, 2}));
  EXPECT_TRUE(batch[1].second.equal(-x.select(1, 0).to(at::kLong)));
  std::vector<int64_t> numbers;
  for (int64_t r = 0; r < count; ++r) {
    numbers.push_back(x[r][0].item<int64_t>());
    EXPECT_EQ(x[r][1].item<float>(), x[r][0].item<float>() + 0.5F);
  }
  return numbers;
}

}  // namespace

TEST(TensorData, HoldsOutTheLastRows) {
  const TensorData data(counting_rows(25));
  EXPECT_EQ(data.rows(), 25);
  EXPECT_EQ(data.training_rows(), 23);
  EXPECT_EQ(data.evaluation_rows(), 2);
  EXPECT_EQ(TensorData(counting_rows(25), 0).evaluation_rows(), 0);
  EXPECT_EQ(TensorData(counting_rows(4), 0.5).training_rows(), 2);
  EXPECT_EQ(TensorData(counting_rows(1), 0.9).training_rows(), 1);
}

TEST(TensorData, TellsDataApart) {
  const uint64_t sum = TensorData(counting_rows(8)).checksum();
  EXPECT_EQ(TensorData(counting_rows(8), 0.5).checksum(), sum);
  NamedTensors changed = counting_rows(8);
  changed[1].second[7] = 3;
  EXPECT_NE(TensorData(changed).checksum(), sum);
  NamedTensors renamed = counting_rows(8);
  renamed[0].first = "z";
  EXPECT_NE(TensorData(renamed).checksum(), sum);
  EXPECT_NE(TensorData(counting_rows(9)).checksum(), sum);
  // The same bytes in different rows, and with a different dtype.
  NamedTensors shaped = {{"x", at::arange(8)}};
  const uint64_t of_rows = TensorData(shaped).checksum();
  shaped[0].second = shaped[0].second.view({4, 2});
  EXPECT_NE(TensorData(shaped).checksum(), of_rows);
  shaped[0].second = at::arange(8).view(at::kDouble);
  EXPECT_NE(TensorData(shaped).checksum(), of_rows);
}

TEST(TensorData, RefusesWhatHasNoRows) {
  EXPECT_ERROR(TensorData({}), ArgumentError, "expected at least one tensor of examples, got none");
  EXPECT_ERROR(TensorData({{"x", at::ones({})}}), ArgumentError,
               "x: expected rows of examples, got Tensor[]");
  EXPECT_ERROR(TensorData({{"x", at::ones({0, 3})}}), ArgumentError,
               "x: expected rows of examples, got Tensor[0, 3]");
  EXPECT_ERROR(TensorData({{"x", at::ones({4})}, {"y", at::ones({5})}}), ArgumentError,
               "y: expected 4 rows, as in the other tensors, got 5");
  for (const double share : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_ERROR(TensorData(counting_rows(4), share), ArgumentError,
                 "expected a held-out share from 0 to below 1, got");
  }
}

TEST(TensorData, ReadsWhatPythonHasWritten) {
  const std::string folder = testing::TempDir() + "tensor_data_test" + std::to_string(::getpid());
  fs::create_directories(folder);
  run_python(R"(
numbers = torch.arange(20.0)
torch.save({"x": torch.stack([numbers, numbers + 0.5]).t(), "y": -torch.arange(20)}, "rows.pt")
torch.save({"x": torch.ones(2), "words": ["a", "b"]}, "words.pt")
torch.save({"x": torch.ones(2), "y": torch.ones(3)}, "uneven.pt")
torch.save({1: torch.ones(2)}, "unnamed.pt")
torch.save(torch.ones(2), "tensor.pt")
torch.save({}, "empty.pt")
)",
             folder);
  const TensorData data = TensorData::read(folder + "/rows.pt", 0.25);
  EXPECT_EQ(data.training_rows(), 15);
  EXPECT_EQ(data.evaluation_rows(), 5);
  EXPECT_EQ(data.checksum(), TensorData(counting_rows(20)).checksum());
  TensorRows rows(data.tensors(), 15, 5, 1);
  for (const int64_t row : drawn(rows, 5)) EXPECT_GE(row, 15);
  for (const char* name : {"words.pt", "unnamed.pt", "tensor.pt", "none.pt"}) {
    EXPECT_ERROR(TensorData::read(folder + "/" + name), FileError,
                 folder + "/" + name + ": not a file of named tensors");
  }
  EXPECT_ERROR(TensorData::read(folder + "/uneven.pt"), ArgumentError, "expected 2 rows");
  EXPECT_ERROR(TensorData::read(folder + "/empty.pt"), ArgumentError, "got none");
  fs::resize_file(folder + "/rows.pt", fs::file_size(folder + "/rows.pt") / 2);
  EXPECT_ERROR(TensorData::read(folder + "/rows.pt"), FileError, "not a file of named tensors");
  fs::remove_all(folder);
}

TEST(TensorRows, ShowEveryRowOnceAPass) {
  TensorRows rows(counting_rows(20), 4, 10, 1);
  std::vector<std::vector<int64_t>> passes;
  for (int pass = 0; pass < 3; ++pass) {
    passes.push_back(drawn(rows, 10));
    EXPECT_EQ(std::set<int64_t>(passes.back().begin(), passes.back().end()),
              (std::set<int64_t>{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
}

TEST(TensorRows, AreKnownByTheirPosition) {
  TensorRows all(counting_rows(20), 0, 20, 5);
  const std::vector<int64_t> first = drawn(all, 17);
  const std::vector<int64_t> second = drawn(all, 50);  // through two further passes
  EXPECT_EQ(all.position(), 67);
  TensorRows later(counting_rows(20), 0, 20, 5);
  later.set_position(17);
  EXPECT_EQ(drawn(later, 50), second);
  later.set_position(0);
  EXPECT_EQ(drawn(later, 17), first);
  TensorRows other(counting_rows(20), 0, 20, 6);
  EXPECT_NE(drawn(other, 17), first);
  EXPECT_ERROR(later.set_position(-1), ArgumentError, "expected a position of at least 0, got -1");
  EXPECT_ERROR(TensorRows(counting_rows(20), 0, 0, 1), ArgumentError,
               "expected at least one row of examples, got 0");
  // A batch may be larger than all there is.
  TensorRows few(counting_rows(20), 18, 2, 1);
  EXPECT_EQ(drawn(few, 5).size(), 5U);
}

}  // namespace stagecraft
