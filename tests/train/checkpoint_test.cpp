#include "stagecraft/train/checkpoint.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "stagecraft/base/error.h"
#include "stagecraft/train/checkpoint_writer.h"
#include "stagecraft/train/durable_file.h"
#include "tests/support/expect_error.h"

namespace stagecraft {

namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "checkpoint_test_" + info->name() + std::to_string(::getpid());
    fs::remove_all(folder_);
  }
  ~CheckpointTest() override { fs::remove_all(folder_); }

  static Checkpoint sample(int64_t step) {
    Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.seed = 0xfedcba9876543210;
    checkpoint.pipeline_steps = 77;
    checkpoint.notes = R"({"rows":17,"rate":0.1})";
    checkpoint.stages.resize(2);
    checkpoint.stages[0]["model"] = {{"a.weight", at::arange(12, at::kFloat).view({3, 4})},
                                     {"a.bias", at::arange(4, at::kDouble)}};
    checkpoint.stages[0]["average"] = {{"a.weight", at::randn({3, 4})}};
    // Half of a larger storage, and transposed.
    checkpoint.stages[1]["model"] = {{"b", at::randn({8, 6}).slice(0, 2, 5).t()}};
    return checkpoint;
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void flip_byte(const std::string& name, std::streamoff at) const {
    std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  }

  std::string folder_;
};

TEST_F(CheckpointTest, AWriterSavesTheValuesOfItsStart) {
  CheckpointWriter writer(folder_, 2);
  EXPECT_EQ(writer.newest(), "");
  for (const int64_t step : {1, 2, 3}) {
    Checkpoint checkpoint = sample(step);
    at::Tensor trained = checkpoint.stages[0]["model"][0].second;
    const at::Tensor expected = trained.clone();
    writer.start(checkpoint);
    EXPECT_TRUE(writer.is_started());
    trained.fill_(-1);  // as the next update does
    writer.finish();
    EXPECT_FALSE(writer.is_started());
    EXPECT_EQ(writer.newest(), path("step-0000000" + std::to_string(step)));
    const Checkpoint loaded = load_checkpoint(writer.newest());
    EXPECT_TRUE(at::equal(loaded.stages.at(0).at("model").at(0).second, expected));
  }
  EXPECT_EQ(list_checkpoints(folder_).size(), 2);
}

TEST_F(CheckpointTest, AWriterThrowsOnceAndKeepsTheLastGoodOne) {
  CheckpointWriter writer(folder_);
  writer.start(sample(1));
  writer.finish();
  const std::string good = writer.newest();
  Checkpoint wrong = sample(2);
  wrong.notes = "{";
  writer.start(wrong);
  EXPECT_THROW(writer.finish(), ArgumentError);
  writer.finish();  // said once
  EXPECT_EQ(writer.newest(), good);
  writer.start(wrong);
  EXPECT_THROW(writer.start(sample(3)), ArgumentError);
  EXPECT_FALSE(writer.is_started());
  writer.start(sample(3));
  writer.finish();
  EXPECT_EQ(writer.newest(), path("step-00000003"));
}

TEST_F(CheckpointTest, AWriterWritesNothingOfARankWithoutTheTensors) {
  CheckpointWriter writer(folder_);
  writer.start({.step = 1, .is_elsewhere = true});
  EXPECT_FALSE(writer.is_started());
  EXPECT_TRUE(list_checkpoints(folder_).empty());
}

}  // namespace

TEST_F(CheckpointTest, ComesBack) {
  const Checkpoint written = sample(200);
  EXPECT_EQ(save_checkpoint(folder_, written), path("step-00000200"));
  for (const std::string& from : {folder_, path("step-00000200")}) {
    const Checkpoint read = load_checkpoint(from);
    EXPECT_EQ(read.step, 200);
    EXPECT_EQ(read.notes, written.notes);
    EXPECT_EQ(read.seed, written.seed);
    EXPECT_EQ(read.pipeline_steps, written.pipeline_steps);
    ASSERT_EQ(read.stages.size(), 2U);
    for (std::size_t s = 0; s < 2; ++s) {
      ASSERT_EQ(read.stages[s].size(), written.stages[s].size());
      for (const auto& [section, tensors] : written.stages[s]) {
        const NamedTensors& got = read.stages[s].at(section);
        ASSERT_EQ(got.size(), tensors.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          EXPECT_EQ(got[i].first, tensors[i].first);
          EXPECT_TRUE(at::equal(got[i].second, tensors[i].second));
          EXPECT_EQ(got[i].second.scalar_type(), tensors[i].second.scalar_type());
        }
      }
    }
  }
  // No more than the tensor itself of a larger storage.
  EXPECT_LT(fs::file_size(path("step-00000200/stage-1.pt")), 2000U);
}

TEST_F(CheckpointTest, IsReadByPlainLibtorch) {
  save_checkpoint(folder_, sample(1));
  std::ifstream file(path("step-00000001/stage-0.pt"), std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const auto dict = torch::jit::pickle_load(bytes).toGenericDict();
  const auto model = dict.at("model").toGenericDict();
  EXPECT_TRUE(at::equal(model.at("a.weight").toTensor(), at::arange(12, at::kFloat).view({3, 4})));
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (const int64_t step : std::vector<int64_t>{5, 10, 15, 100000000000})
    save_checkpoint(folder_, sample(step), 2);
  EXPECT_EQ(list_checkpoints(folder_),
            (std::vector<std::string>{path("step-00000015"), path("step-100000000000")}));
  EXPECT_EQ(load_checkpoint(folder_).step, 100000000000);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(CheckpointTest, ReplacesOneOfTheSameStep) {
  save_checkpoint(folder_, sample(5));
  Checkpoint other = sample(5);
  other.notes = "\"other\"";
  save_checkpoint(folder_, other);
  EXPECT_EQ(load_checkpoint(folder_).notes, "\"other\"");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(CheckpointTest, DoesNotSeeWhatWasLeftHalfWritten) {
  save_checkpoint(folder_, sample(5));
  // As a process leaves it that is killed while it writes, or while it removes.
  for (const char* name : {".unfinished", ".removed"}) {
    fs::create_directories(path(name));
    std::ofstream(path(name) + "/stage-0.pt") << "half";
  }
  EXPECT_EQ(load_checkpoint(folder_).step, 5);
  save_checkpoint(folder_, sample(6));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(CheckpointTest, WritersTakeTurns) {
  std::vector<std::thread> writers;
  for (int64_t step = 0; step < 6; ++step) {
    writers.emplace_back([this, step] { save_checkpoint(folder_, sample(step / 2)); });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(list_checkpoints(folder_).size(), 3U);
  for (const std::string& each : list_checkpoints(folder_)) load_checkpoint(each);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3);
  const detail::FolderLock taken(folder_, std::chrono::seconds(1));
  EXPECT_ERROR(detail::FolderLock(folder_, std::chrono::seconds(0)), FileError,
               folder_ + ": locked by a different process, waited 0 s");
}

TEST_F(CheckpointTest, RefusesWhatCannotBeLoaded) {
  Checkpoint bad = sample(1);
  bad.notes = "{";
  EXPECT_ERROR(save_checkpoint(folder_, bad), ArgumentError,
               "the notes of a checkpoint are not valid JSON: {");
  bad = sample(-1);
  EXPECT_ERROR(save_checkpoint(folder_, bad), ArgumentError, "a step of at least 0, got -1");
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(CheckpointTest, NamesADamagedFile) {
  save_checkpoint(folder_, sample(5));
  const auto size = static_cast<std::streamoff>(fs::file_size(path("step-00000005/stage-1.pt")));
  for (std::streamoff at = 0; at < size; at += 97) {
    flip_byte("step-00000005/stage-1.pt", at);
    EXPECT_ERROR(load_checkpoint(folder_), FileError, "step-00000005/stage-1.pt: damaged");
    flip_byte("step-00000005/stage-1.pt", at);
  }
  EXPECT_EQ(load_checkpoint(folder_).step, 5);
  fs::resize_file(path("step-00000005/stage-1.pt"), static_cast<uintmax_t>(size - 1));
  EXPECT_ERROR(load_checkpoint(folder_), FileError,
               "stage-1.pt: damaged: expected " + std::to_string(size) + " bytes");
  fs::remove(path("step-00000005/stage-1.pt"));
  EXPECT_ERROR(load_checkpoint(folder_), FileError, "stage-1.pt: cannot be read: No such file");
}

TEST_F(CheckpointTest, NamesADamagedIndex) {
  save_checkpoint(folder_, sample(5));
  const auto size = static_cast<std::streamoff>(fs::file_size(path("step-00000005/index.json")));
  for (std::streamoff at = 0; at + 2 < size; at += 13) {  // the last are a brace and the line's end
    flip_byte("step-00000005/index.json", at);
    try {
      // Spaces between the parts may change without harm.
      EXPECT_EQ(load_checkpoint(folder_).notes, sample(5).notes);
    } catch (const FileError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("step-00000005/index.json: "));
    }
    flip_byte("step-00000005/index.json", at);
  }
  fs::remove(path("step-00000005/index.json"));
  EXPECT_ERROR(load_checkpoint(folder_), FileError, "index.json: cannot be read");
  std::ofstream(path("step-00000005/index.json")) << R"({"format": "stagecraft checkpoint 9"})";
  EXPECT_ERROR(load_checkpoint(folder_), FileError,
               R"(expected the format "stagecraft checkpoint 1")");
}

TEST_F(CheckpointTest, SaysThatThereIsNone) {
  EXPECT_ERROR(load_checkpoint(folder_), FileError, folder_ + ": no checkpoint found");
  EXPECT_TRUE(list_checkpoints(folder_).empty());
}

TEST_F(CheckpointTest, LeavesNothingWhereItCannotWrite) {
  std::ofstream(folder_) << "a file, no folder";
  EXPECT_ERROR(save_checkpoint(folder_, sample(1)), FileError, folder_ + ": cannot be created");
}

}  // namespace stagecraft
