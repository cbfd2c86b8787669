#include "stagecraft/transport/mpi/mpi_library.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include <dlfcn.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"

namespace stagecraft::detail {
namespace {

namespace fs = std::filesystem;

// The number of folders above a program that are searched for a lib folder.
constexpr int kLevels = 4;

struct Names {
  const char* file;
  const char* mpi;
  const char* packages;
};

constexpr Names names_of(MpiKind kind) {
  if (kind == MpiKind::kOpenMpi) {
    return {"libstagecraft_openmpi.so", "Open MPI", "openmpi-bin and libopenmpi-dev"};
  }
  return {"libstagecraft_mpich.so", "MPICH", "mpich and libmpich-dev"};
}

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;
}

std::vector<std::string> candidates(const char* file) {
  if (const char* const given = std::getenv("STAGECRAFT_MPI_PLUGIN")) return {given};
  std::vector<std::string> found;
  const auto consider = [&](const fs::path& path) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) found.push_back(path.string());
  };
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_mpi_plugin), &here) != 0) {
    std::error_code ignored;
    // A program that was found on PATH is known by its name only, not by its path.
    fs::path folder = fs::path(here.dli_fname).parent_path();
    if (!fs::path(here.dli_fname).is_absolute()) {
      folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    }
    consider(folder / file);
    for (int level = 0; level < kLevels && folder.has_relative_path(); ++level) {
      folder = folder.parent_path();
      consider(folder / "lib" / file);
      consider(folder / SC_INSTALL_LIBDIR / file);
    }
  }
  consider(fs::path(SC_INSTALL_FULL_LIBDIR) / file);
  found.emplace_back(file);
  return found;
}

const MpiPlugin* load(const std::string& path, bool is_global, std::string& problem) {
  // Open MPI's components find its symbols only if they are global.
  void* const library = dlopen(path.c_str(), RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (library == nullptr) {
    problem += std::string(problem.empty() ? "" : "; ") + dlerror();
    return nullptr;
  }
  const auto get = reinterpret_cast<GetMpiPlugin>(dlsym(library, kMpiPluginFunction));
  const MpiPlugin* const plugin = get == nullptr ? nullptr : get();
  if (plugin != nullptr && plugin->version == kMpiPluginVersion) return plugin;
  problem += (problem.empty() ? "" : "; ") + path + ": not a plug-in of this version";
  return nullptr;
}

}  // namespace

std::optional<MpiKind> find_mpi_kind() {
  if (const char* const wanted = std::getenv("STAGECRAFT_MPI")) {
    if (wanted == std::string_view("openmpi")) return MpiKind::kOpenMpi;
    if (wanted == std::string_view("mpich")) return MpiKind::kMpich;
    throw ArgumentError(fmt::format("STAGECRAFT_MPI=\"{}\": expected openmpi or mpich", wanted));
  }
  // Before the variables of PMI: a job of Open MPI may run inside a job whose launcher sets them.
  if (is_set("OMPI_COMM_WORLD_SIZE")) return MpiKind::kOpenMpi;
  // Set by hydra, and by srun with PMI.
  if (is_set("PMI_RANK") || is_set("PMI_SIZE")) return MpiKind::kMpich;
  if (is_set("PMIX_RANK")) return MpiKind::kOpenMpi;
  return std::nullopt;
}

const MpiPlugin& load_mpi_plugin(MpiKind kind) {
  const auto names = names_of(kind);
  std::string problem;
  for (const auto& path : candidates(names.file)) {
    const auto* const plugin = load(path, kind == MpiKind::kOpenMpi, problem);
    if (plugin == nullptr) continue;
    log(LogLevel::kInfo, fmt::format("{} through {}", plugin->name, path));
    return *plugin;
  }
  throw ArgumentError(
      fmt::format("cannot load the plug-in for {} ({}): install {} (names of Debian packages) and "
                  "rebuild Stagecraft, or set STAGECRAFT_MPI_PLUGIN to its file",
                  names.mpi, problem, names.packages));
}

}  // namespace stagecraft::detail
