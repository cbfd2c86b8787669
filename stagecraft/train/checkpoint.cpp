#include "stagecraft/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/version.h"
#include "stagecraft/train/durable_file.h"
#include "stagecraft/train/state_file.h"

namespace stagecraft {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "stagecraft checkpoint 1";
constexpr const char* kIndex = "index.json";
constexpr std::string_view kPrefix = "step-";
/// Names of a checkpoint that is being written or was interrupted, and of one that is removed.
constexpr const char* kUnfinished = ".unfinished";
constexpr const char* kRemoved = ".removed";
constexpr auto kWait = std::chrono::seconds(60);

std::string hex(uint64_t number) {
  return fmt::format("{:016x}", number);
}

/// The step of a checkpoint's folder; nothing for other names.
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

/// Of an index without its own checksum.
std::string index_checksum(const Json& index) {
  const std::string text = json_to_text(index);
  return hex(detail::checksum(std::as_bytes(std::span(text))));
}

/// With all above it; those that are new are on the disk, too.
void make_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const fs::path above = path.parent_path();
  if (!above.empty() && above != path) make_folder(above);
  fs::create_directory(path, error);
  if (error) {
    throw FileError(fmt::format("{}: cannot be created: {}", path.string(), error.message()));
  }
  detail::sync_folder(above.empty() ? "." : above.string());
}

/// What those left who were killed. Only for who has the lock.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder / kUnfinished, ignored);
  fs::remove_all(folder / kRemoved, ignored);
}

void write_all(const fs::path& folder, const Checkpoint& checkpoint) {
  Json index = {{"format", kFormat},
                {"written_by", fmt::format("stagecraft {}", version())},
                {"step", checkpoint.step},
                {"seed", checkpoint.seed},
                {"pipeline_steps", checkpoint.pipeline_steps},
                {"notes", ordered_json_from_text(checkpoint.notes)},
                {"stages", Json::array()}};
  for (std::size_t s = 0; s < checkpoint.stages.size(); ++s) {
    const std::string name = fmt::format("stage-{}.pt", s);
    const detail::FileSeal seal =
        detail::write_state_file((folder / name).string(), checkpoint.stages[s]);
    Json tensors = Json::object();
    for (const auto& [section, entries] : checkpoint.stages[s]) {
      for (const auto& [tensor, unused] : entries) tensors[section].push_back(tensor);
    }
    index["stages"].push_back({{"file", name},
                               {"size", seal.size},
                               {"checksum", hex(seal.checksum)},
                               {"tensors", std::move(tensors)}});
  }
  index["checksum"] = index_checksum(index);
  const std::string text = json_to_text(index, {.indent = 1}) + "\n";
  detail::DurableFile file((folder / kIndex).string());
  file.write(std::as_bytes(std::span(text)));
  file.close();
  detail::sync_folder(folder.string());
}

Json read_index(const std::string& path) {
  const std::string text = detail::read_text(path);
  Json index = try_ordered_json_from_text(text);
  if (!index.is_object() || !index.contains("format")) {
    throw FileError(fmt::format("{}: not a checkpoint index, or damaged", path));
  }
  if (index["format"] != kFormat) {
    throw FileError(fmt::format("{}: expected the format \"{}\", got {}", path, kFormat,
                                json_to_text(index["format"])));
  }
  const Json expected = index.value("checksum", Json());
  index.erase("checksum");
  if (expected != index_checksum(index)) {
    throw FileError(fmt::format("{}: damaged: the checksum does not match the text", path));
  }
  return index;
}

void check_seal(const std::string& path, const Json& entry) {
  const detail::FileSeal seal = detail::seal_of(path);
  const auto size = entry.at("size").get<uint64_t>();
  if (seal.size != size) {
    throw FileError(fmt::format("{}: damaged: expected {} bytes, got {}", path, size, seal.size));
  }
  if (hex(seal.checksum) != entry.at("checksum").get<std::string>()) {
    throw FileError(fmt::format("{}: damaged: the checksum does not match the index", path));
  }
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, int32_t keep) {
  require<ArgumentError>(checkpoint.step >= 0, "expected a step of at least 0, got {}",
                         checkpoint.step);
  require<ArgumentError>(!try_ordered_json_from_text(checkpoint.notes).is_discarded(),
                         "the notes of a checkpoint are not valid JSON: {}", checkpoint.notes);
  const fs::path path = fs::path(folder) / fmt::format("{}{:08}", kPrefix, checkpoint.step);
  if (checkpoint.is_elsewhere) return path.string();
  make_folder(folder);
  const detail::FolderLock lock(folder, kWait);
  remove_leftovers(folder);
  const fs::path unfinished = fs::path(folder) / kUnfinished;
  const fs::path removed = fs::path(folder) / kRemoved;
  try {
    make_folder(unfinished);
    write_all(unfinished, checkpoint);
    detail::replace_folder(unfinished.string(), path.string(), removed.string());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    throw;
  }
  detail::sync_folder(folder);
  if (keep > 0) {
    const std::vector<std::string> all = list_checkpoints(folder);
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
      if (all[i] == path.string()) continue;
      // Renamed first: a checkpoint that is half removed must not look complete.
      std::error_code error;
      fs::rename(all[i], removed, error);
      if (!error) fs::remove_all(removed, error);
    }
  }
  return path.string();
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (const auto step = step_of(entry.path())) found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

int64_t step_of_checkpoint(const std::string& path) {
  const std::optional<int64_t> step = step_of(path);
  require<ArgumentError>(step.has_value(), "expected the path of a checkpoint, got {}", path);
  return *step;
}

Checkpoint load_checkpoint(const std::string& path) {
  fs::path folder = path;
  std::error_code ignored;
  if (!fs::exists(folder / kIndex, ignored)) {
    const std::vector<std::string> all = list_checkpoints(path);
    if (!step_of(folder) && all.empty()) {
      throw FileError(fmt::format("{}: no checkpoint found", path));
    }
    if (!all.empty()) folder = all.back();
  }
  const std::string index_path = (folder / kIndex).string();
  const Json index = read_index(index_path);
  Checkpoint checkpoint;
  try {
    checkpoint.step = index.at("step").get<int64_t>();
    checkpoint.seed = index.at("seed").get<uint64_t>();
    checkpoint.pipeline_steps = index.at("pipeline_steps").get<uint64_t>();
    checkpoint.notes = json_to_text(index.at("notes"));
    for (const Json& entry : index.at("stages")) {
      const std::string file = (folder / entry.at("file").get<std::string>()).string();
      check_seal(file, entry);
      checkpoint.stages.push_back(detail::read_state_file(file));
    }
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: not a checkpoint index: {}", index_path, error.what()));
  }
  return checkpoint;
}

}  // namespace stagecraft
