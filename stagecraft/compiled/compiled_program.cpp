#include "stagecraft/compiled/compiled_program.h"

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "stagecraft/base/error.h"
#include "stagecraft/compiled/compiled_operators.h"

namespace stagecraft {
namespace {

/// The folder of the torch that this program has loaded, with a slash at its end; empty if it is
/// not found.
std::string torch_folder() {
  std::string folder;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string_view path = info->dlpi_name;
        constexpr std::string_view kName = "libtorch_cpu.so";
        if (!path.ends_with(kName)) return 0;
        *static_cast<std::string*>(found) = path.substr(0, path.size() - kName.size());
        return 1;
      },
      &folder);
  return folder;
}

// Programs need libtorch.so, which has no code of its own, so a program in C++ may not have loaded
// it. It is in the folder of libtorch_cpu.so, which the loader does not search.
void load_libtorch() {
  static const bool is_done = [] {
    const std::string folder = torch_folder();
    if (!folder.empty()) ::dlopen((folder + "libtorch.so").c_str(), RTLD_LAZY | RTLD_GLOBAL);
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace

ProgramFile::ProgramFile(std::span<const std::byte> bytes) {
  const auto fail = [](const std::string& path) {
    throw FileError(fmt::format("{}: the programs of a stage cannot be written there: {}", path,
                                std::generic_category().message(errno)));
  };
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  std::string path = ((error ? "/tmp" : folder) / "stagecraft-XXXXXX.pt2").string();
  constexpr int kSuffix = 4;  // the length of ".pt2"
  const int file = ::mkstemps(path.data(), kSuffix);
  if (file < 0) fail(path);
  path_ = std::move(path);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int cause = errno;
      ::close(file);
      ::unlink(path_.c_str());
      errno = cause;
      fail(path_);
    }
    done += static_cast<std::size_t>(wrote);
  }
  ::close(file);
}

ProgramFile::~ProgramFile() {
  ::unlink(path_.c_str());
}

struct CompiledProgram::Impl {
  // One runner without lock: with a lock, the host would wait for the run before.
  Impl(const std::string& path, const std::string& name, c10::Device device)
      : loader(path, name, /*run_single_threaded=*/true, /*num_runners=*/1,
               device.is_cpu() ? c10::DeviceIndex(-1) : device.index()) {}

  torch::inductor::AOTIModelPackageLoader loader;
};

CompiledProgram::CompiledProgram(const std::string& path, const std::string& name,
                                 c10::Device device) {
  load_libtorch();
  detail::register_compiled_operators();
  // torch's loader reads the description of every package into one static variable, so packages are
  // loaded one at a time.
  static std::mutex loading;
  try {
    const std::lock_guard lock(loading);
    impl_ = std::make_unique<Impl>(path, name, device);
  } catch (const std::exception&) {
    throw Error(fmt::format("the compiled program '{}' cannot be loaded: {}", name,
                            describe(std::current_exception())));
  }
}

CompiledProgram::~CompiledProgram() = default;
CompiledProgram::CompiledProgram(CompiledProgram&&) noexcept = default;
CompiledProgram& CompiledProgram::operator=(CompiledProgram&&) noexcept = default;

std::vector<at::Tensor> CompiledProgram::run(std::vector<at::Tensor>&& arguments) {
  // Programs call operators of torch, which must neither record a graph nor cast.
  const c10::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return impl_->loader.boxed_run(std::move(arguments));
}

}  // namespace stagecraft
