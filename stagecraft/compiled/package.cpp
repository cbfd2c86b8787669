#include "stagecraft/compiled/package.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Version.h>
#include <torch/version.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/compiled/cuda_capability.h"
#include "stagecraft/compiled/instructions.h"
#include "stagecraft/compiled/package_json.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/zip_file.h"

namespace stagecraft {
namespace {

using nlohmann::json;

constexpr const char* kDescription = "stagecraft.json";
constexpr const char* kPipe = "pipe";
constexpr int64_t kFormat = 1;

std::string hex_sha256(std::string_view bytes) {
  std::string text;
  for (const char byte : detail::sha256(bytes)) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

constexpr const char* processor_here() {
#if defined(__aarch64__)
  return "aarch64";
#elif defined(__x86_64__)
  return "x86_64";
#else
  return "unknown";
#endif
}

/// Whether a processor of the capability `here` has the instructions of `needed`. Both are names of
/// at::get_cpu_capability.
bool has_instructions(std::string_view needed, std::string_view here) {
  if (needed == here || needed == "DEFAULT" || needed == "NO AVX") return true;
  return needed == "AVX2" && here == "AVX512";
}

/// "a, b, c and 2 more".
std::string list_of_first(const std::vector<std::string>& words) {
  constexpr std::size_t kNamed = 3;
  const std::size_t named = std::min(kNamed, words.size());
  const std::span<const std::string> first = std::span(words).first(named);
  const std::string list = fmt::format("{}", fmt::join(first, ", "));
  return named == words.size() ? list : fmt::format("{} and {} more", list, words.size() - named);
}

/// "2.15.0" for "2.15.0+cu130".
std::string_view without_build(std::string_view version) {
  return version.substr(0, version.find('+'));
}

}  // namespace

std::string_view name_of(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kForward:
      return "forward";
    case ProgramKind::kBackward:
      return "backward";
    case ProgramKind::kInputBackward:
      return "input_backward";
    case ProgramKind::kWeightBackward:
      return "weight_backward";
    case ProgramKind::kPrepare:
      return "prepare";
    case ProgramKind::kEval:
      return "eval";
  }
  return "";
}

struct CompiledPackage::Impl {
  explicit Impl(const std::string& path) : file(path, "a package of compiled stages") {
    try {
      read();
    } catch (const FileError& error) {
      const std::string message = error.what();
      if (message.starts_with(path)) throw;
      throw FileError(fmt::format("{}: is damaged: {}", path, message));
    }
  }

  void read() {
    for (const char* name : {kDescription, kPipe}) {
      if (!file.has(name)) {
        file.fail(fmt::format("is not a package of compiled stages: it has no {}", name));
      }
    }
    const json description = try_json_from_text(file.text(kDescription));
    if (!description.is_object()) file.fail(fmt::format("is damaged: {}", kDescription));
    const exported::JsonField root(description, kDescription);
    const int64_t format = root.at("format").integer();
    if (format != kFormat) {
      file.fail(fmt::format(
          "has format {}, but this version of Stagecraft reads format {}; compile the model again",
          format, kFormat));
    }
    json rest = description;
    rest.erase("checksum");
    if (hex_sha256(json_to_text(rest)) != root.at("checksum").text()) {
      file.fail(fmt::format("is damaged: {} does not have its checksum", kDescription));
    }
    info = detail::package_info_of(description);
    check_members(root.at("members"));
    for (const CompiledStageInfo& stage : info.stages) {
      if (!file.has(stage.code)) file.fail(fmt::format("is damaged: it has no {}", stage.code));
    }
  }

  void check_members(const exported::JsonField& members) const {
    members.for_each_member([&](const std::string& name, const exported::JsonField& member) {
      if (!file.has(name)) file.fail(fmt::format("is damaged: it has no {}", name));
      const auto bytes = file.member(name);
      if (static_cast<int64_t>(bytes.size()) != member.at("bytes").integer()) {
        file.fail(fmt::format("is damaged: {} has {} bytes, expected {}", name, bytes.size(),
                              member.at("bytes").integer()));
      }
      if (hex_sha256(file.text(name)) != member.at("sha256").text()) {
        file.fail(fmt::format("is damaged: {} does not have its checksum", name));
      }
    });
    for (const std::string& name : file.names()) {
      if (name != kDescription && !members.has(name)) {
        file.fail(fmt::format("is damaged: {} is not in its list of members", name));
      }
    }
  }

  exported::ZipFile file;
  PackageInfo info;
};

CompiledPackage::CompiledPackage(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
CompiledPackage::~CompiledPackage() = default;
CompiledPackage::CompiledPackage(CompiledPackage&&) noexcept = default;
CompiledPackage& CompiledPackage::operator=(CompiledPackage&&) noexcept = default;

const std::string& CompiledPackage::path() const {
  return impl_->file.path();
}

const PackageInfo& CompiledPackage::info() const {
  return impl_->info;
}

void CompiledPackage::require_runs_on(c10::Device device) const {
  const PackageInfo& own = info();
  const auto require_same = [&](std::string_view what, std::string_view needed,
                                std::string_view here) {
    if (needed == here) return;
    impl_->file.fail(
        fmt::format("its stages were compiled for {} {}, but this program runs {} {}; compile the "
                    "model again there (stagecraft compile)",
                    what, needed, what, here));
  };
  require_same("torch", without_build(own.torch), without_build(TORCH_VERSION));
  require_same("the processor", own.processor, processor_here());
  const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (own.device != kind) {
    impl_->file.fail(fmt::format(
        "its stages were compiled for the device {}, and cannot run on {}; compile the model for "
        "that device (stagecraft compile --device {})",
        own.device, kind, kind));
  }
  if (device.is_cpu()) {
    const std::string here = at::get_cpu_capability();
    if (!has_instructions(own.capability, here)) {
      require_same("processors with", own.capability, here);
    }
    const std::vector<std::string>& instructions = detail::instructions_here();
    const auto missing = detail::missing_instructions(own.instructions, instructions);
    if (!instructions.empty() && !missing.empty()) {
      impl_->file.fail(
          fmt::format("its stages were compiled for a processor with {}, which this processor does "
                      "not have; compile the model again here (stagecraft compile)",
                      list_of_first(missing)));
    }
  } else {
    const std::string here = detail::cuda_capability(device);
    if (!here.empty()) require_same("a GPU of", own.capability, here);
  }
}

std::span<const std::byte> CompiledPackage::pipe() const {
  return impl_->file.member(kPipe);
}

std::span<const std::byte> CompiledPackage::code(StageId stage) const {
  return impl_->file.member(info().stages.at(stage.position()).code);
}

}  // namespace stagecraft
