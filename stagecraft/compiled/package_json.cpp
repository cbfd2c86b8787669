#include "stagecraft/compiled/package_json.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/exported/json_field.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::detail {
namespace {

using exported::JsonField;
using Kind = ProgramSlot::Kind;

struct KindName {
  std::string_view name;
  Kind kind;
};
constexpr std::array<KindName, 10> kInputKinds = {{{"parameter", Kind::kParameter},
                                                   {"buffer", Kind::kBuffer},
                                                   {"input", Kind::kInput},
                                                   {"seeds", Kind::kSeeds},
                                                   {"sizes", Kind::kSizes},
                                                   {"sizes_of", Kind::kSizes},
                                                   {"prepared", Kind::kPrepared},
                                                   {"saved", Kind::kSaved},
                                                   {"kept", Kind::kKept},
                                                   {"output_grad", Kind::kOutputGrad}}};
constexpr std::array<KindName, 7> kOutputKinds = {{{"output", Kind::kOutput},
                                                   {"saved", Kind::kSaved},
                                                   {"prepared", Kind::kPrepared},
                                                   {"kept", Kind::kKept},
                                                   {"input_grad", Kind::kInputGrad},
                                                   {"parameter_grad", Kind::kParameterGrad},
                                                   {"buffer_update", Kind::kBufferUpdate}}};

// The largest number of a slot. Vectors are allocated with that many elements, so a damaged package
// must not choose it freely.
constexpr int64_t kMostIndex = 1 << 20;

std::vector<std::string> texts_of(const JsonField& field) {
  std::vector<std::string> texts;
  field.for_each([&](const JsonField& each) { texts.push_back(each.text()); });
  return texts;
}

/// A list of texts, with an empty text for a null.
std::vector<std::string> leaves_of(const JsonField& field) {
  std::vector<std::string> texts;
  field.for_each([&](const JsonField& each) {
    texts.push_back(each.is_null() ? std::string() : each.text());
  });
  return texts;
}

/// A list of numbers from 0 to `limit` - 1. Fails for any other number.
std::vector<std::size_t> numbers_of(const JsonField& field, std::size_t limit) {
  std::vector<std::size_t> numbers;
  field.for_each([&](const JsonField& each) {
    const int64_t number = each.integer();
    if (number < 0 || number >= static_cast<int64_t>(limit)) {
      each.fail(fmt::format("expected a number below {}, got {}", limit, number));
    }
    numbers.push_back(static_cast<std::size_t>(number));
  });
  return numbers;
}

std::vector<std::optional<SizeExpr>> sizes_of(const JsonField& field,
                                              const std::vector<std::string>& names) {
  std::vector<std::optional<SizeExpr>> sizes;
  field.for_each([&](const JsonField& each) {
    if (each.is_null()) {
      sizes.emplace_back();
    } else if (each.value().is_number()) {
      sizes.emplace_back(SizeExpr(each.integer()));
    } else {
      const std::string text = each.text();
      try {
        TextCursor in(text);
        sizes.emplace_back(parse_size_expr(in, names));
        if (!in.at_end()) sizes.back().reset();
      } catch (const ParseError&) {
        sizes.emplace_back();  // an expression that this version cannot check
      }
    }
  });
  return sizes;
}

ProgramSlot slot_of(const JsonField& field, std::span<const KindName> kinds,
                    const std::vector<std::string>& names) {
  ProgramSlot slot;
  const std::string kind = field.at("kind").text();
  const auto found = std::ranges::find(kinds, kind, &KindName::name);
  if (found == kinds.end()) field.at("kind").fail(fmt::format("'{}' is not known", kind));
  slot.kind = found->kind;
  if (field.has("index")) {
    const int64_t index = field.at("index").integer();
    if (index < 0 || index > kMostIndex) field.at("index").fail(fmt::format("is {}", index));
    slot.index = static_cast<std::size_t>(index);
  }
  const auto dtype = find_dtype(field.at("dtype").text());
  if (!dtype) field.at("dtype").fail("is not known");
  slot.dtype = *dtype;
  slot.sizes = sizes_of(field.at("sizes"), names);
  if (field.has("strides")) slot.strides = sizes_of(field.at("strides"), names);
  slot.strides.resize(slot.sizes.size());
  return slot;
}

std::vector<ProgramSlot> slots_of(const JsonField& field, std::span<const KindName> kinds,
                                  const std::vector<std::string>& names) {
  std::vector<ProgramSlot> slots;
  field.for_each([&](const JsonField& each) { slots.push_back(slot_of(each, kinds, names)); });
  return slots;
}

ProgramKind kind_of(const std::string& name, const JsonField& field) {
  for (std::size_t k = 0; k < kNumProgramKinds; ++k) {
    if (name == name_of(static_cast<ProgramKind>(k))) return static_cast<ProgramKind>(k);
  }
  field.fail("is not the name of a program");
}

/// The numbers of a program's outputs of a kind.
std::set<std::size_t> made(const CompiledStageInfo& stage, ProgramKind program, Kind kind) {
  std::set<std::size_t> numbers;
  if (const ProgramInfo* info = stage.find(program)) {
    for (const ProgramSlot& slot : info->outputs) {
      if (slot.kind == kind) numbers.insert(slot.index);
    }
  }
  return numbers;
}

/// Fails unless everything that a program reads exists when it runs.
void check_slots(const CompiledStageInfo& stage, const JsonField& field) {
  if (stage.find(ProgramKind::kForward) == nullptr) field.fail("has no program forward");
  const auto prepared = made(stage, ProgramKind::kPrepare, Kind::kPrepared);
  const auto saved = made(stage, ProgramKind::kForward, Kind::kSaved);
  const auto kept = made(stage, ProgramKind::kInputBackward, Kind::kKept);
  const auto has = [&](const ProgramSlot& slot, ProgramKind program) {
    const bool is_backward = program != ProgramKind::kForward && program != ProgramKind::kEval &&
                             program != ProgramKind::kPrepare;
    const bool is_prepare = program == ProgramKind::kPrepare;
    switch (slot.kind) {
      case Kind::kParameter:
      case Kind::kParameterGrad:
        return slot.index < stage.parameters.size();
      case Kind::kBuffer:
      case Kind::kBufferUpdate:
        return slot.index < stage.buffers.size() && !is_prepare;
      case Kind::kInput:
      case Kind::kInputGrad:
        return slot.index < stage.inputs.size() && !is_prepare;
      case Kind::kOutput:
        return slot.index < stage.outputs.size();
      case Kind::kSeeds:
        return !stage.draws.empty() && !is_prepare;
      case Kind::kPrepared:
        return prepared.contains(slot.index);
      case Kind::kSaved:
        return saved.contains(slot.index) && (is_backward || program == ProgramKind::kForward);
      case Kind::kKept:
        return kept.contains(slot.index) && is_backward;
      case Kind::kOutputGrad:
        return is_backward && std::ranges::count(stage.output_grads, slot.index) == 1;
      case Kind::kSizes:
        return std::ranges::all_of(slot.sizes, [](const auto& size) { return size.has_value(); });
    }
    return false;
  };
  for (std::size_t k = 0; k < kNumProgramKinds; ++k) {
    const auto kind = static_cast<ProgramKind>(k);
    const ProgramInfo* info = stage.find(kind);
    if (info == nullptr) continue;
    for (const auto* slots : {&info->inputs, &info->outputs}) {
      for (std::size_t i = 0; i < slots->size(); ++i) {
        if (has((*slots)[i], kind)) continue;
        field.fail(fmt::format("{} {} of {} refers to something that does not exist",
                               slots == &info->inputs ? "input" : "output", i, name_of(kind)));
      }
    }
  }
  if ((stage.find(ProgramKind::kInputBackward) == nullptr) !=
      (stage.find(ProgramKind::kWeightBackward) == nullptr)) {
    field.fail("has only one half of the backward");
  }
}

CompiledStageInfo stage_of(const JsonField& field, const std::vector<std::string>& names) {
  CompiledStageInfo stage;
  stage.code = field.at("code").text();
  stage.parameters = texts_of(field.at("parameters"));
  stage.buffers = texts_of(field.at("buffers"));
  stage.trained = numbers_of(field.at("trained"), stage.parameters.size());
  stage.inputs = texts_of(field.at("inputs"));
  stage.outputs = leaves_of(field.at("outputs"));
  stage.input_grads = numbers_of(field.at("input_grads"), stage.inputs.size());
  stage.output_grads = numbers_of(field.at("output_grads"), stage.outputs.size());
  stage.draws = texts_of(field.at("draws"));
  stage.saved_bytes = field.at("bytes").at("saved").integer();
  stage.kept_bytes = field.at("bytes").at("kept").integer();
  stage.prepared_bytes = field.at("bytes").at("prepared").integer();
  field.at("programs").for_each_member([&](const std::string& name, const JsonField& program) {
    stage.programs[static_cast<std::size_t>(kind_of(name, program))] =
        ProgramInfo{slots_of(program.at("inputs"), kInputKinds, names),
                    slots_of(program.at("outputs"), kOutputKinds, names)};
  });
  check_slots(stage, field);
  return stage;
}

}  // namespace

PackageInfo package_info_of(const nlohmann::json& text) {
  const JsonField root(text, "stagecraft.json");
  PackageInfo info;
  info.torch = root.at("torch").text();
  info.device = root.at("device").text();
  if (info.device != "cpu" && info.device != "cuda") {
    root.at("device").fail(fmt::format("expected cpu or cuda, got '{}'", info.device));
  }
  info.processor = root.at("processor").text();
  info.capability = root.at("capability").text();
  if (root.has("instructions")) info.instructions = texts_of(root.at("instructions"));
  if (root.has("autocast")) info.autocast = root.at("autocast").text();
  std::vector<std::string> names;
  root.at("symbols").for_each_member([&](const std::string& name, const JsonField& field) {
    names.push_back(name);
    CompiledSize& size = info.sizes.emplace_back(CompiledSize{.name = name});
    size.least = field.at("min").integer();
    if (field.has("max")) size.greatest = field.at("max").integer();
    size.example = field.at("example").integer();
  });
  root.at("fixed").for_each_member([&](const std::string& name, const JsonField& field) {
    info.fixed.push_back({name, field.integer()});
  });
  if (names.size() > static_cast<std::size_t>(SizeExpr::kMaxSizes)) {
    root.at("symbols").fail(
        fmt::format("expected at most {} sizes, got {}", SizeExpr::kMaxSizes, names.size()));
  }
  root.at("stages").for_each(
      [&](const JsonField& stage) { info.stages.push_back(stage_of(stage, names)); });
  if (info.stages.empty()) root.at("stages").fail("is empty");
  return info;
}

}  // namespace stagecraft::detail
