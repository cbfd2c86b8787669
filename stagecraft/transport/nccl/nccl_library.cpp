#include "stagecraft/transport/nccl/nccl_library.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include <dlfcn.h>

#include <c10/util/Exception.h>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

constexpr const char* kName = "libnccl.so.2";

std::vector<std::string> candidates() {
  const char* const asked = std::getenv("STAGECRAFT_NCCL_LIBRARY");
  if (asked != nullptr && *asked != '\0') return {asked};
  std::vector<std::string> paths = {kName};
  // torch's wheels put NCCL into a package beside torch. c10 is in site-packages/torch/lib.
  Dl_info info;
  void* const known = dlsym(RTLD_DEFAULT, "_ZN3c105ErrorD1Ev");
  if (known != nullptr && dladdr(known, &info) != 0 && info.dli_fname != nullptr) {
    const auto packages = std::filesystem::path(info.dli_fname).parent_path() / "../..";
    paths.push_back((packages / "nvidia/nccl/lib" / kName).lexically_normal().string());
  }
  return paths;
}

template <typename Function>
void find(void* library, const std::string& path, const char* name, Function*& function) {
  void* const found = dlsym(library, name);
  require<ArgumentError>(found != nullptr, "{} has no {}: is it NCCL 2.7 or newer?", path, name);
  function = reinterpret_cast<Function*>(found);
}

}  // namespace

std::shared_ptr<const NcclLibrary> NcclLibrary::load() {
  std::string path;
  std::string problems;
  void* library = nullptr;
  for (const auto& candidate : candidates()) {
    // If torch has loaded NCCL under this name, dlopen returns the same library.
    library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      path = candidate;
      break;
    }
    const char* const problem = dlerror();
    problems += (problems.empty() ? "" : "; ") + std::string(problem == nullptr ? "" : problem);
  }
  require<ArgumentError>(library != nullptr,
                         "NCCL was not found ({}): use a torch wheel with CUDA, install libnccl2, "
                         "or set STAGECRAFT_NCCL_LIBRARY to its file",
                         problems);
  auto found = std::make_shared<NcclLibrary>();
  find(library, path, "ncclGetVersion", found->get_version);
  find(library, path, "ncclGetUniqueId", found->get_unique_id);
  find(library, path, "ncclGetErrorString", found->get_error_string);
  find(library, path, "ncclCommInitRank", found->comm_init_rank);
  find(library, path, "ncclCommDestroy", found->comm_destroy);
  find(library, path, "ncclCommAbort", found->comm_abort);
  find(library, path, "ncclCommGetAsyncError", found->comm_get_async_error);
  find(library, path, "ncclSend", found->send);
  find(library, path, "ncclRecv", found->receive);
  return found;
}

std::string NcclLibrary::version() const {
  int code = 0;
  if (get_version(&code) != kSuccess) return "of no known version";
  // Versions up to 2.8 have one digit less for the minor version.
  const int base = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / base, code % base / 100, code % 100);
}

std::string NcclLibrary::describe(Result result) const {
  const char* const words = get_error_string(result);
  return words == nullptr ? fmt::format("error {}", result) : std::string(words);
}

}  // namespace stagecraft::detail
