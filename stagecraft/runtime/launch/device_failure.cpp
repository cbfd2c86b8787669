#include "stagecraft/runtime/launch/device_failure.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include <c10/util/Exception.h>

#include "stagecraft/base/device_error.h"
#include "stagecraft/runtime/launch/pending_actions.h"

namespace stagecraft::detail {

namespace {

constexpr std::array<std::string_view, 5> kByteUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};

// The bytes in torch's message, "Tried to allocate 2.00 GiB"; -1 if it has none.
int64_t asked_bytes(const std::string& message) {
  constexpr std::string_view kWords = "Tried to allocate ";
  const std::size_t found = message.find(kWords);
  if (found == std::string::npos) return -1;
  const char* const number = message.c_str() + found + kWords.size();
  char* rest = nullptr;
  double value = std::strtod(number, &rest);
  if (rest == number) return -1;
  const std::string_view unit = std::string_view(rest).substr(rest[0] == ' ' ? 1 : 0);
  for (const std::string_view name : kByteUnits) {
    if (unit.starts_with(name)) return static_cast<int64_t>(value);
    value *= 1024;
  }
  return -1;
}

bool is_out_of_memory(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// The first line: torch appends advice about its own settings.
std::string first_line(const std::exception_ptr& cause) {
  const std::string text = stagecraft::describe(cause);
  return text.substr(0, text.find('\n'));
}

std::string savings(const std::vector<InFlight>& in_flight) {
  std::string text;
  for (const InFlight& each : in_flight) {
    if (each.microbatches == 0) continue;
    text += fmt::format("; stage {} has {} {} in flight", each.stage.value(), each.microbatches,
                        each.microbatches == 1 ? "microbatch" : "microbatches");
    if (each.kept <= 0) continue;
    text += fmt::format(", {} each: one less saves {}", bytes_or_unknown(each.kept),
                        bytes_or_unknown(each.kept));
    // The microbatch whose backward runs is computed again, and then held as a whole.
    const int64_t saved = (each.microbatches - 1) * (each.kept - each.inputs);
    if (!each.recomputes && saved > 0) {
      text += fmt::format(", recompute of the stage about {}", bytes_or_unknown(saved));
    }
  }
  return text;
}

}  // namespace

std::string bytes_or_unknown(int64_t bytes) {
  if (bytes < 0) return "an unknown number of bytes";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kByteUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.1f} {}", value, kByteUnits[unit]);
}

std::exception_ptr explain_out_of_memory(const std::exception_ptr& cause, DeviceProbe* probe,
                                         const std::vector<InFlight>& in_flight) {
  if (!is_out_of_memory(cause)) return nullptr;
  const int64_t asked = asked_bytes(stagecraft::describe(cause));
  const int64_t free = probe != nullptr ? probe->free_memory() : -1;
  std::string text = fmt::format("out of memory: {} asked, {} free on the device",
                                 bytes_or_unknown(asked), bytes_or_unknown(free));
  if (probe != nullptr) {
    const DeviceProbe::Memory memory = probe->memory();
    text += fmt::format("; this process has allocated {} and reserved {}",
                        bytes_or_unknown(memory.allocated), bytes_or_unknown(memory.reserved));
  }
  text += savings(in_flight);
  text += fmt::format(" ({})", first_line(cause));
  return std::make_exception_ptr(OutOfMemoryError(text, asked, free));
}

std::exception_ptr explain_device_error(const std::exception_ptr& cause, DeviceProbe& probe,
                                        c10::Device device) {
  try {
    probe.check();
    return nullptr;
  } catch (const std::exception&) {
    const std::string actions = PendingActions::describe(device);
    return std::make_exception_ptr(DeviceError(fmt::format(
        "the device {} reports an error of a kernel that was launched earlier: {}; {}; this "
        "process cannot use the device any more (CUDA_LAUNCH_BLOCKING=1 shows the operator)",
        device.str(), first_line(cause),
        actions.empty() ? "all actions were complete"
                        : "actions since the last good point: " + actions)));
  }
}

void rethrow_explained(DeviceProbe* probe, c10::Device device) {
  const std::exception_ptr cause = std::current_exception();
  try {
    std::rethrow_exception(cause);
  } catch (const StageError&) {
    throw;  // already explained
  } catch (const DeviceError&) {
    throw;
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (...) {
    if (auto error = explain_out_of_memory(cause, probe, {})) std::rethrow_exception(error);
    if (probe != nullptr) {
      if (auto error = explain_device_error(cause, *probe, device)) std::rethrow_exception(error);
    }
    throw;
  }
}

}  // namespace stagecraft::detail
