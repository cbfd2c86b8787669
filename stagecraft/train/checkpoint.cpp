#include "stagecraft/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/version.h"
#include "stagecraft/shard/shard_unit.h"
#include "stagecraft/train/durable_file.h"
#include "stagecraft/train/state_file.h"

namespace stagecraft {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "stagecraft checkpoint 1";
constexpr const char* kPartsFormat = "stagecraft checkpoint 2";  // with parts
constexpr const char* kIndex = "index.json";
constexpr std::string_view kPrefix = "step-";
/// Names of a checkpoint that is being written or was interrupted, and of one that is removed.
constexpr const char* kUnfinished = ".unfinished";
constexpr const char* kRemoved = ".removed";
constexpr auto kWait = std::chrono::seconds(60);
constexpr auto kWaitForParts = std::chrono::minutes(10);
constexpr auto kPoll = std::chrono::milliseconds(5);

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

/// The checksum of an index that does not contain its checksum yet.
std::string index_checksum(const Json& index) {
  const std::string text = json_to_text(index);
  return hex(detail::checksum(std::as_bytes(std::span(text))));
}

/// Creates a folder and all folders above it. New folders are on the disk when this returns.
void make_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const fs::path above = path.parent_path();
  if (!above.empty() && above != path) make_folder(above);
  // A different rank may create it at the same time.
  std::error_code ignored;
  if (!fs::create_directory(path, error) && fs::is_directory(path, ignored)) return;
  if (error) {
    throw FileError(fmt::format("{}: cannot be created: {}", path.string(), error.message()));
  }
  detail::sync_folder(above.empty() ? "." : above.string());
}

/// The folder of parts that are being written.
std::string unfinished_name(const Checkpoint& checkpoint) {
  if (!checkpoint.part) return kUnfinished;
  return fmt::format("{}-{}-{}", kUnfinished, hex(checkpoint.part->run), checkpoint.step);
}

/// Removes what killed processes have left. REQUIRES the lock of the folder. Parts of this run
/// stay: they may belong to the next checkpoint, which other ranks have begun.
void remove_leftovers(const fs::path& folder, const Checkpoint& checkpoint) {
  std::error_code ignored;
  fs::remove_all(folder / kRemoved, ignored);
  const std::string own =
      checkpoint.part ? fmt::format("{}-{}", kUnfinished, hex(checkpoint.part->run)) : "";
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kUnfinished)) continue;
    if (own.empty() || !name.starts_with(own)) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, ignored);
}

Json index_of(const Checkpoint& checkpoint, const char* format) {
  return {{"format", format},
          {"written_by", fmt::format("stagecraft {}", version())},
          {"step", checkpoint.step},
          {"seed", checkpoint.seed},
          {"pipeline_steps", checkpoint.pipeline_steps},
          {"notes", ordered_json_from_text(checkpoint.notes)},
          {"stages", Json::array()}};
}

void write_text(const fs::path& path, const std::string& text) {
  detail::DurableFile file(path.string());
  file.write(std::as_bytes(std::span(text)));
  file.close();
}

void write_index(const fs::path& folder, Json index) {
  index["checksum"] = index_checksum(index);
  write_text(folder / kIndex, json_to_text(index, {.indent = 1}) + "\n");
  detail::sync_folder(folder.string());
}

void write_all(const fs::path& folder, const Checkpoint& checkpoint) {
  Json index = index_of(checkpoint, kFormat);
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
  write_index(folder, std::move(index));
}

// A part is complete when its note exists: a note is written under a different name, then renamed.
fs::path note_of(const fs::path& folder, int32_t part) {
  return folder / fmt::format("part-{}.json", part);
}

void write_note(const fs::path& folder, int32_t part, const Json& note) {
  const fs::path unfinished = folder / fmt::format("part-{}.unfinished", part);
  write_text(unfinished, json_to_text(note));
  std::error_code error;
  fs::rename(unfinished, note_of(folder, part), error);
  if (error) {
    throw FileError(
        fmt::format("{}: cannot be written: {}", note_of(folder, part).string(), error.message()));
  }
}

void write_part(const fs::path& folder, const Checkpoint& checkpoint) {
  const Checkpoint::Part& part = *checkpoint.part;
  const std::string name = fmt::format("part-{}.pt", part.number);
  const detail::FileSeal seal =
      detail::write_state_file((folder / name).string(), checkpoint.stages.front());
  Json pieces = Json::object();
  for (const auto& [section, entries] : part.pieces) {
    for (const auto& [tensor, piece] : entries) {
      pieces[section][tensor] = {
          {"begin", piece.begin}, {"sizes", piece.sizes}, {"strides", piece.strides}};
    }
  }
  write_note(folder, part.number,
             {{"file", name},
              {"size", seal.size},
              {"checksum", hex(seal.checksum)},
              {"pieces", std::move(pieces)}});
}

// The note of a rank that could not write its part, for rank 0. Writing the note may fail, too.
void write_failure(const fs::path& folder, int32_t part, const std::string& cause) {
  try {
    write_note(folder, part, {{"failed", cause}});
  } catch (const FileError&) {
    // Rank 0 waits until its deadline.
  }
}

Json wait_for_note(const fs::path& folder, int32_t part,
                   std::chrono::steady_clock::time_point end) {
  const fs::path path = note_of(folder, part);
  std::error_code ignored;
  while (!fs::exists(path, ignored)) {
    if (std::chrono::steady_clock::now() > end) {
      throw FileError(fmt::format("{}: rank {} has not written its part", path.string(), part));
    }
    std::this_thread::sleep_for(kPoll);
  }
  Json note = try_ordered_json_from_text(detail::read_text(path.string()));
  if (note.is_object() && note.contains("failed")) {
    throw FileError(fmt::format("rank {} could not write its part: {}", part,
                                note["failed"].get<std::string>()));
  }
  return note;
}

// Called on rank 0: waits for all parts, then writes the index.
void write_parts(const fs::path& folder, const Checkpoint& checkpoint) {
  write_part(folder, checkpoint);
  Json index = index_of(checkpoint, kPartsFormat);
  index["parts"] = Json::array();
  const auto end = std::chrono::steady_clock::now() + kWaitForParts;
  for (int32_t part = 0; part < checkpoint.part->count; ++part) {
    index["parts"].push_back(wait_for_note(folder, part, end));
  }
  std::error_code ignored;
  for (int32_t part = 0; part < checkpoint.part->count; ++part) {
    fs::remove(note_of(folder, part), ignored);
  }
  write_index(folder, std::move(index));
}

// A tensor that is put together from pieces.
struct WholeTensor {
  at::Tensor tensor;
  int64_t filled = 0;
};
using WholeSections = std::map<std::string, std::map<std::string, WholeTensor>>;

void add_part(WholeSections& sections, const Json& part, const std::string& path) {
  const at::NoGradGuard no_grad;
  const Json& pieces = part.at("pieces");
  for (auto& [section, tensors] : detail::read_state_file(path)) {
    const Json own = pieces.value(section, Json::object());
    for (auto& [name, tensor] : tensors) {
      WholeTensor& whole = sections[section][name];
      if (!own.contains(name)) {
        whole = {tensor, tensor.numel()};
        continue;
      }
      const Json& piece = own[name];
      const auto sizes = piece.at("sizes").get<std::vector<int64_t>>();
      const auto strides = piece.at("strides").get<std::vector<int64_t>>();
      const auto begin = piece.at("begin").get<int64_t>();
      if (!whole.tensor.defined())
        whole.tensor = at::empty_strided(sizes, strides, tensor.options());
      const at::Tensor flat = in_memory_order(whole.tensor);
      if (whole.tensor.sizes() != at::IntArrayRef(sizes) || begin < 0 || tensor.dim() != 1 ||
          begin + tensor.numel() > flat.numel() || tensor.scalar_type() != flat.scalar_type()) {
        throw FileError(fmt::format("{}: its piece of {} does not fit the others", path, name));
      }
      flat.narrow(0, begin, tensor.numel()).copy_(tensor);
      whole.filled += tensor.numel();
    }
  }
}

std::map<std::string, NamedTensors> whole_sections(const WholeSections& sections,
                                                   const std::string& path) {
  std::map<std::string, NamedTensors> all;
  for (const auto& [section, tensors] : sections) {
    for (const auto& [name, whole] : tensors) {
      if (whole.filled != whole.tensor.numel()) {
        throw FileError(fmt::format("{}: {} of {} elements of {} are there", path, whole.filled,
                                    whole.tensor.numel(), name));
      }
      all[section].emplace_back(name, whole.tensor);
    }
  }
  return all;
}

Json read_index(const std::string& path) {
  const std::string text = detail::read_text(path);
  Json index = try_ordered_json_from_text(text);
  if (!index.is_object() || !index.contains("format")) {
    throw FileError(fmt::format("{}: not a checkpoint index, or damaged", path));
  }
  if (index["format"] != kFormat && index["format"] != kPartsFormat) {
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
  const fs::path unfinished = fs::path(folder) / unfinished_name(checkpoint);
  if (checkpoint.part && checkpoint.part->number != 0) {
    try {
      make_folder(unfinished);
      write_part(unfinished, checkpoint);
    } catch (const FileError& error) {
      write_failure(unfinished, checkpoint.part->number, error.what());
      throw;
    }
    return path.string();
  }
  const detail::FolderLock lock(folder, kWait);
  remove_leftovers(folder, checkpoint);
  const fs::path removed = fs::path(folder) / kRemoved;
  try {
    make_folder(unfinished);
    if (checkpoint.part) {
      write_parts(unfinished, checkpoint);
    } else {
      write_all(unfinished, checkpoint);
    }
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
      // The checkpoint is renamed first: if it is half removed, it must not look complete.
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
    if (index.contains("parts")) {
      WholeSections sections;
      for (const Json& part : index.at("parts")) {
        const std::string file = (folder / part.at("file").get<std::string>()).string();
        check_seal(file, part);
        add_part(sections, part, file);
      }
      checkpoint.stages.push_back(whole_sections(sections, folder.string()));
    }
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: not a checkpoint index: {}", index_path, error.what()));
  }
  return checkpoint;
}

}  // namespace stagecraft
