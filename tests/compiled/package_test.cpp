#include "stagecraft/compiled/package.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/read_file.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/compiled/instructions.h"
#include "stagecraft/exported/zip_file.h"
#include "tests/compiled/packages.h"
#include "tests/exported/zip_writer.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using nlohmann::json;

/// The members of a package, to be changed and written again.
class Opened {
 public:
  explicit Opened(const std::string& path) {
    const exported::ZipFile file(path);
    for (const std::string& name : file.names()) members_[name] = std::string(file.text(name));
    description_ = json_from_text(members_.at("stagecraft.json"));
  }

  json& description() { return description_; }
  std::string& member(const std::string& name) { return members_.at(name); }
  void remove(const std::string& name) { members_.erase(name); }
  void add(const std::string& name, const std::string& bytes) { members_[name] = bytes; }

  /// With a checksum that is right for the description.
  std::string sealed() {
    description_.erase("checksum");
    description_["checksum"] = hex(json_to_text(description_));
    members_["stagecraft.json"] = json_to_text(description_);
    return bytes();
  }
  /// The members as they are.
  std::string bytes() const {
    std::vector<ZipMember> members;
    for (const auto& [name, content] : members_) members.push_back({"package/" + name, content});
    return zip_bytes(members);
  }

  static std::string hex(std::string_view text) {
    std::string result;
    for (const char byte : detail::sha256(text)) {
      result += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    return result;
  }

 private:
  std::map<std::string, std::string> members_;
  json description_;
};

void expect_refused(const std::string& bytes, const std::string& says) {
  const TempFile file(bytes);
  EXPECT_ERROR(CompiledPipe::load(file.path()), FileError, says);
  EXPECT_ERROR(CompiledPipe::load(file.path()), FileError, file.path());
}

/// A package with one thing changed in its description.
std::string with(const std::function<void(json&)>& change) {
  Opened package(package_path("mlp"));
  change(package.description());
  return package.sealed();
}

TEST(CompiledPackage, LoadsWhatItIsWrittenAgain) {
  const TempFile file(Opened(package_path("mlp")).sealed());
  EXPECT_EQ(CompiledPipe::load(file.path()).num_stages(), 2);
}

TEST(CompiledPackage, RefusesOtherVersionsDevicesAndProcessors) {
  expect_refused(with([](json& d) { d["torch"] = "2.9.1"; }), "torch 2.9.1");
  expect_refused(with([](json& d) { d["processor"] = "riscv64"; }), "riscv64");
  expect_refused(with([](json& d) { d["capability"] = "AVX1024"; }), "AVX1024");
  expect_refused(with([](json& d) { d["format"] = 2; }), "format 2");
  expect_refused(with([](json& d) {
                   d["device"] = "cuda";
                   d["capability"] = "sm_90";
                 }),
                 "GPU");
  const CompiledPackage package(package_path("mlp"));
  EXPECT_ERROR(package.require_runs_on(c10::Device("cuda:0")), FileError, "the device cpu");
  EXPECT_ERROR(CompiledPipe::load(package_path("mlp"), {.device = c10::Device("cuda")}), FileError,
               "its stages were compiled for the device cpu, and cannot run on cuda; compile");
}

// What Python records is what C++ finds on the same processor.
TEST(CompiledPackage, KnowsTheInstructionsOfTheProcessorThatCompiledIt) {
  const CompiledPackage package(package_path("mlp"));
  EXPECT_EQ(package.info().instructions, detail::instructions_here());
}

TEST(CompiledPackage, RefusesProcessorsWithoutItsInstructions) {
  if (detail::instructions_here().empty()) GTEST_SKIP() << "/proc/cpuinfo has no instructions";
  const auto needing = [](const std::vector<std::string>& more) {
    return with([&](json& d) {
      for (const std::string& each : more) d["instructions"].push_back(each);
    });
  };
  expect_refused(needing({"avx4096"}), "a processor with avx4096, which this processor does not");
  expect_refused(needing({"a1", "a2", "a3", "a4", "a5"}), "with a1, a2, a3 and 2 more, which");
  expect_refused(with([](json& d) { d["instructions"] = "avx"; }), "instructions");
  // Packages of earlier versions do not say what they need.
  const TempFile file(with([](json& d) { d.erase("instructions"); }));
  EXPECT_EQ(CompiledPipe::load(file.path()).num_stages(), 2);
}

TEST(CompiledPackage, RefusesFilesThatAreNoPackages) {
  EXPECT_ERROR(CompiledPipe::load("/nowhere/x.scp"), FileError, "/nowhere/x.scp");
  expect_refused("", "a package of compiled stages");
  expect_refused("this is a text, and not an archive", "a package of compiled stages");
  expect_refused(zip_bytes({{"package/other", "bytes"}}), "stagecraft.json");
}

TEST(CompiledPackage, RefusesCutOffFiles) {
  const std::string whole = read_file(package_path("mlp"));
  for (const double share : {0.01, 0.5, 0.9, 0.999}) {
    const auto size = static_cast<std::size_t>(share * static_cast<double>(whole.size()));
    // Members are archives, so the end of one of them may be found: the message is not always that
    // the file is cut off.
    const TempFile file(whole.substr(0, size));
    EXPECT_ERROR(CompiledPipe::load(file.path()), FileError, file.path());
  }
}

TEST(CompiledPackage, RefusesDamageToEveryMember) {
  Opened original(package_path("mlp"));
  const std::string code = original.description()["stages"][0]["code"];
  for (const std::string& name : {std::string("pipe"), code}) {
    const std::size_t size = original.member(name).size();
    for (const std::size_t at : {std::size_t{0}, size / 3, size / 2, size - 1}) {
      Opened package(package_path("mlp"));
      package.member(name)[at] ^= 1;
      expect_refused(package.bytes(), name);
    }
    Opened shorter(package_path("mlp"));
    shorter.member(name).pop_back();
    expect_refused(shorter.bytes(), name);
    Opened without(package_path("mlp"));
    without.remove(name);
    expect_refused(without.bytes(), name);
  }
  Opened more(package_path("mlp"));
  more.add("code/other.pt2", "bytes");
  expect_refused(more.bytes(), "code/other.pt2");
}

// Single characters of the description: each is refused by its checksum, or not JSON any more.
TEST(CompiledPackage, RefusesDamageToItsDescription) {
  Opened original(package_path("mlp"));
  const std::size_t size = original.member("stagecraft.json").size();
  for (std::size_t at = 0; at < size; at += size / 40) {
    Opened package(package_path("mlp"));
    char& byte = package.member("stagecraft.json")[at];
    if (byte == ' ' || byte == '\n') continue;
    byte = byte == 'x' ? 'y' : 'x';
    expect_refused(package.bytes(), "damaged");
  }
}

// A description that is sealed again, and wrong: never more than an error.
TEST(CompiledPackage, RefusesDescriptionsThatDoNotFit) {
  expect_refused(with([](json& d) { d.erase("stages"); }), "stages");
  expect_refused(with([](json& d) { d["stages"] = json::array(); }), "stages");
  expect_refused(with([](json& d) { d["stages"].push_back(d["stages"][0]); }), "2");
  expect_refused(with([](json& d) { d["stages"][0]["code"] = "code/missing.pt2"; }), "missing");
  expect_refused(with([](json& d) { d["stages"][0]["programs"].erase("forward"); }), "forward");
  expect_refused(
      with([](json& d) { d["stages"][0]["programs"]["forward"]["inputs"][0]["index"] = 1000; }),
      "does not exist");
  expect_refused(
      with([](json& d) { d["stages"][0]["programs"]["forward"]["inputs"][0]["index"] = -1; }),
      "index");
  expect_refused(
      with([](json& d) { d["stages"][0]["programs"]["forward"]["inputs"][0]["kind"] = "thing"; }),
      "thing");
  expect_refused(with([](json& d) {
                   d["stages"][0]["programs"]["forward"]["inputs"][0]["dtype"] = "float99";
                 }),
                 "dtype");
  expect_refused(with([](json& d) { d["stages"][0]["trained"].push_back(99); }), "99");
}

// What is only found when the stage is built.
TEST(CompiledPackage, RefusesStagesThatDoNotFitTheirGraph) {
  const auto build = [](const std::string& bytes) {
    const TempFile file(bytes);
    CompiledPipe::load(file.path()).build_stage(StageId(0));
  };
  EXPECT_ERROR(build(with([](json& d) { d["stages"][0]["inputs"][0] = "other"; })), FileError,
               "inputs");
  EXPECT_ERROR(build(with([](json& d) { d["stages"][0]["outputs"][0] = "other"; })), FileError,
               "outputs");
  EXPECT_ERROR(build(with([](json& d) { d["stages"][0]["parameters"][0] = "other"; })), FileError,
               "other");
  // A program that the code does not have.
  EXPECT_ERROR(build(with([](json& d) {
                 d["stages"][0]["programs"]["eval"] = d["stages"][0]["programs"]["forward"];
                 json& outputs = d["stages"][0]["programs"]["eval"]["outputs"];
                 for (std::size_t i = outputs.size(); i-- > 0;) {
                   if (outputs[i]["kind"] == "saved") outputs.erase(i);
                 }
               })),
               Error, "'eval' cannot be loaded");
}

}  // namespace
}  // namespace stagecraft
