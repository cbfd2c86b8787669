#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/schedule/json_input.h"
#include "stagecraft/sim/cost_keys.h"
#include "stagecraft/sim/file_units.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;

double number_of(const Json& json, const std::string& where) {
  require<ArgumentError>(json.is_number(), "{}: expected a number, got {}", where,
                         describe_json(json));
  return json.get<double>();
}

const Json& array_of_objects(const Json& json, const char* key) {
  const Json& array = json[key];
  require<ArgumentError>(array.is_array(), "\"{}\": expected an array of objects", key);
  for (std::size_t i = 0; i < array.size(); ++i) {
    require<ArgumentError>(array[i].is_object(), "\"{}\", entry {}: expected an object", key, i);
  }
  return array;
}

/// Sets the cost that a key of a layer names: a cost of a stage, or one of the layer's own. Returns
/// false for an unknown key.
bool set_layer_cost(PlanLayer& layer, std::string_view key, double value) {
  if (key == "BYTES") return layer.output_bytes = value, true;
  if (key == "WEIGHTS") return layer.weights = value, true;
  if (key == "STATE") return layer.state = value, true;
  if (key == "GRADS") return layer.gradients = value, true;
  if (key == "G") return layer.gather = value, true;
  if (key == "PF") return layer.peak_forward = value, true;
  if (key == "PI") return layer.peak_input = value, true;
  if (key == "PW") return layer.peak_weight = value, true;
  if (key == "RF") return layer.recompute = value, true;
  return set_stage_cost(layer.cost, key, value);
}

bool gives_freed(const Json& object, bool of_input) {
  return of_input ? object.contains("MI") || object.contains("MB") : object.contains("MW");
}

// Computes MI or MW if it is missing: MF = MI + MW.
void complete_memory(PlanLayer& layer, bool has_input, bool has_weight) {
  StageCost& cost = layer.cost;
  if (has_input && !has_weight) {
    cost.memory_freed_by_weight = cost.memory_forward - cost.memory_freed_by_input;
  } else if (!has_input) {
    if (!has_weight) cost.memory_freed_by_weight = cost.memory_forward;
    cost.memory_freed_by_input = cost.memory_forward - cost.memory_freed_by_weight;
  }
}

struct LayerDefaults {
  PlanLayer layer = {};
  bool has_input = false;
  bool has_weight = false;
};

void check_freed_twice(const Json& object, const std::string& where) {
  for (const auto& [one, other] : {std::pair("I", "B"), std::pair("MI", "MB")}) {
    require<ArgumentError>(!object.contains(one) || !object.contains(other),
                           "{}: {} and {} mean the same; give one of them", where, one, other);
  }
}

void read_layers(LayerFile& file, const Json& json, const LayerDefaults& defaults) {
  const Json& array = array_of_objects(json, "layers");
  require<ArgumentError>(!array.empty(), "\"layers\" is empty");
  for (std::size_t i = 0; i < array.size(); ++i) {
    const Json& object = array[i];
    const std::string where = fmt::format("\"layers\", entry {}", i);
    check_freed_twice(object, where);
    PlanLayer layer = defaults.layer;
    uint64_t repeat = 1;
    for (const auto& [key, value] : object.items()) {
      const std::string member = fmt::format("{}, \"{}\"", where, key);
      if (key == "name") {
        require<ArgumentError>(value.is_string(), "{}: expected a text, got {}", member,
                               describe_json(value));
        layer.name = value.get<std::string>();
      } else if (key == "repeat") {
        require<ArgumentError>(value.is_number_unsigned() && value.get<uint64_t>() > 0,
                               "{}: expected a whole number of at least 1, got {}", member,
                               describe_json(value));
        repeat = value.get<uint64_t>();
      } else {
        require<ArgumentError>(set_layer_cost(layer, key, number_of(value, member)),
                               "{}: a layer has no cost \"{}\"", where, key);
      }
    }
    complete_memory(layer, gives_freed(object, true) || defaults.has_input,
                    gives_freed(object, false) || defaults.has_weight);
    require<ArgumentError>(repeat <= kMostLayers && file.layers.size() + repeat <= kMostLayers,
                           "{}: a model has at most {} layers, and with \"repeat\" {} this one has "
                           "more",
                           where, kMostLayers, repeat);
    file.layers.insert(file.layers.end(), static_cast<std::size_t>(repeat), layer);
  }
}

void read_plan_ranks(LayerFile& file, const Json& json) {
  for (const Json& object : array_of_objects(json, "ranks")) {
    PlanRank& rank = file.ranks.emplace_back();
    for (const auto& [key, value] : object.items()) {
      const std::string where =
          fmt::format("\"ranks\", entry {}, \"{}\"", file.ranks.size() - 1, key);
      if (key == "CAP") {
        rank.memory = number_of(value, where);
      } else if (key == "SPEED") {
        rank.speed = number_of(value, where);
      } else {
        throw ArgumentError(fmt::format("{}: a rank has CAP and SPEED only", where));
      }
    }
  }
}

void read_plan_links(LayerFile& file, const Json& json) {
  for (const Json& object : array_of_objects(json, "links")) {
    CostModel::PerLink link{Rank(0), Rank(0), file.link};
    const std::string where = fmt::format("\"links\", entry {}", file.links.size());
    for (const char* end : {"from", "to"}) {
      const auto found = object.find(end);
      require<ArgumentError>(found != object.end() && found->is_number_unsigned() &&
                                 found->get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX),
                             "{}: expected \"{}\", a whole number of at least 0", where, end);
      (end[0] == 'f' ? link.from : link.to) = Rank(found->get<int32_t>());
    }
    for (const auto& [key, value] : object.items()) {
      if (key == "from" || key == "to") continue;
      require<ArgumentError>(
          set_link_cost(link.cost, key, number_of(value, fmt::format("{}, \"{}\"", where, key))),
          "{}: a link has no cost \"{}\"", where, key);
    }
    file.links.push_back(link);
  }
}

}  // namespace

LayerFile parse_layer_file(std::string_view text) {
  Json json = read_json(text);
  require<ArgumentError>(json.is_object(), "a cost file is a JSON object");
  require<ArgumentError>(json.contains("layers"),
                         "the cost file has no \"layers\"; for costs of \"stages\" there is "
                         "stagecraft plan --schedule-only");
  LayerFile file;
  const FileUnits units = take_units(json);
  file.units = {units.time, units.bytes};
  check_freed_twice(json, "the cost file");
  LayerDefaults defaults;
  defaults.has_input = gives_freed(json, true);
  defaults.has_weight = gives_freed(json, false);
  // Defaults for all layers and links are read first, because the lists override them.
  for (const auto& [key, value] : json.items()) {
    if (key == "layers" || key == "ranks" || key == "links") continue;
    const std::string where = fmt::format("\"{}\"", key);
    if (key == "INPUT_GRAD") {
      require<ArgumentError>(value.is_boolean(), "{}: expected true or false, got {}", where,
                             describe_json(value));
      file.input_gradient = value.get<bool>();
    } else if (key == "sizes") {
      require<ArgumentError>(value.is_array(), "{}: expected an array of numbers", where);
      for (const Json& size : value) file.sizes.push_back(number_of(size, where));
    } else if (key == "CAP") {
      file.memory = number_of(value, where);
    } else if (key == "INPUT_BYTES") {
      file.input_bytes = number_of(value, where);
    } else {
      const double number = number_of(value, where);
      require<ArgumentError>(
          set_link_cost(file.link, key, number) || set_layer_cost(defaults.layer, key, number),
          "a file of layers has no cost {}; it has F, I (or B), W, FULL, RF, MF, MI (or MB), MW, "
          "PF, PI, PW, BYTES, WEIGHTS, GRADS, STATE, G, C, BW, CAP, INPUT_BYTES, INPUT_GRAD, "
          "sizes, layers, "
          "ranks, links",
          where);
    }
  }
  read_layers(file, json, defaults);
  if (json.contains("ranks")) read_plan_ranks(file, json);
  if (json.contains("links")) read_plan_links(file, json);
  return file;
}

std::string to_layer_file(const LayerFile& file) {
  using Ordered = nlohmann::ordered_json;
  Ordered json = Ordered::object();
  if (file.link.latency != 0) json["C"] = file.link.latency;
  if (file.link.bandwidth) json["BW"] = *file.link.bandwidth;
  if (file.memory) json["CAP"] = *file.memory;
  if (file.input_bytes != 0) json["INPUT_BYTES"] = file.input_bytes;
  if (!file.input_gradient) json["INPUT_GRAD"] = false;
  // A unit in the text of one number becomes the unit of the file.
  const auto time = [&](double value) {
    return file.units.time.empty() ? Ordered(value)
                                   : Ordered(fmt::format("{}{}", value, file.units.time));
  };
  const auto memory = [&](double value) {
    return file.units.bytes ? Ordered(fmt::format("{}B", value)) : Ordered(value);
  };
  json["layers"] = Ordered::array();
  for (std::size_t i = 0; i < file.layers.size();) {
    const PlanLayer& layer = file.layers[i];
    std::size_t next = i + 1;
    while (next < file.layers.size() && file.layers[next] == layer) ++next;
    Ordered one = Ordered::object();
    if (!layer.name.empty()) one["name"] = layer.name;
    if (next - i > 1) one["repeat"] = next - i;
    one["F"] = time(layer.cost.forward);
    one["I"] = time(layer.cost.backward_input);
    one["W"] = time(layer.cost.backward_weight);
    if (layer.cost.backward) one["FULL"] = time(*layer.cost.backward);
    if (layer.recompute) one["RF"] = time(*layer.recompute);
    one["MF"] = memory(layer.cost.memory_forward);
    // The memory freed by I may be negative. A text with a unit cannot be negative.
    one["MI"] = layer.cost.memory_freed_by_input;
    one["MW"] = memory(layer.cost.memory_freed_by_weight);
    one["BYTES"] = memory(layer.output_bytes);
    one["WEIGHTS"] = memory(layer.weights);
    if (layer.gradients) one["GRADS"] = memory(*layer.gradients);
    one["STATE"] = memory(layer.state);
    if (layer.gather) one["G"] = time(*layer.gather);
    if (layer.peak_forward != 0) one["PF"] = memory(layer.peak_forward);
    if (layer.peak_input != 0) one["PI"] = memory(layer.peak_input);
    if (layer.peak_weight != 0) one["PW"] = memory(layer.peak_weight);
    json["layers"].push_back(std::move(one));
    i = next;
  }
  if (!file.ranks.empty()) {
    json["ranks"] = Ordered::array();
    for (const PlanRank& rank : file.ranks) {
      Ordered one = Ordered::object();
      if (rank.memory) one["CAP"] = memory(*rank.memory);
      one["SPEED"] = rank.speed;
      json["ranks"].push_back(std::move(one));
    }
  }
  if (!file.links.empty()) {
    json["links"] = Ordered::array();
    for (const CostModel::PerLink& link : file.links) {
      Ordered one = {
          {"from", link.from.value()}, {"to", link.to.value()}, {"C", link.cost.latency}};
      if (link.cost.bandwidth) one["BW"] = *link.cost.bandwidth;
      json["links"].push_back(std::move(one));
    }
  }
  if (!file.sizes.empty()) json["sizes"] = file.sizes;
  return json_to_text(json, {.indent = 1, .repair = true}) + "\n";
}

}  // namespace stagecraft
