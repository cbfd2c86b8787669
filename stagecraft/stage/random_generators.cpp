#include "stagecraft/stage/random_generators.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {
namespace {

struct Source {
  at::Generator generator;
  bool seeded = false;
};

/// One level of nested scopes.
struct Level {
  ScopeSeed seed;
  std::vector<Source> sources;          // one a device
  std::optional<std::size_t> captured;  // its sequence of CapturedDraws
};

struct ThreadScopes {
  std::vector<Level> levels;
  std::size_t depth = 0;
  CapturedDraws* capture = nullptr;
};

ThreadScopes& thread_scopes() {
  static thread_local ThreadScopes scopes;
  return scopes;
}

at::Generator make_generator(c10::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator();
  at::Generator shared = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(shared.mutex());
  // A clone of the default generator has the right type for the device without naming CUDA.
  return shared.clone();
}

}  // namespace

CapturedDrawsGuard::CapturedDrawsGuard(CapturedDraws& draws) {
  thread_scopes().capture = &draws;
}

CapturedDrawsGuard::~CapturedDrawsGuard() {
  thread_scopes().capture = nullptr;
}

CapturedDraws* find_captured_draws() {
  return thread_scopes().capture;
}

void enter_random_scope(const ScopeSeed& seed) {
  ThreadScopes& scopes = thread_scopes();
  if (scopes.levels.size() == scopes.depth) scopes.levels.emplace_back();
  Level& level = scopes.levels[scopes.depth++];
  level.seed = seed;
  level.captured.reset();
  // Seeded on the first draw: most scopes draw on one device, or not at all.
  for (Source& source : level.sources) source.seeded = false;
}

void leave_random_scope() {
  --thread_scopes().depth;
}

std::optional<at::Generator> find_scope_generator(c10::Device device) {
  ThreadScopes& scopes = thread_scopes();
  if (scopes.depth == 0 || device.is_meta()) return std::nullopt;
  if (!device.is_cpu() && !device.has_index()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  Level& level = scopes.levels[scopes.depth - 1];
  if (scopes.capture != nullptr && scopes.capture->device() == device) {
    if (!level.captured) level.captured = scopes.capture->open(level.seed);
    return scopes.capture->continue_at(*level.captured);
  }
  auto source = std::find_if(level.sources.begin(), level.sources.end(),
                             [&](const Source& each) { return each.generator.device() == device; });
  if (source == level.sources.end()) {
    source = level.sources.insert(source, Source{make_generator(device)});
  }
  if (!source->seeded) {
    source->generator.set_current_seed(level.seed.seed);
    source->seeded = true;
  }
  return source->generator;
}

}  // namespace stagecraft::detail
