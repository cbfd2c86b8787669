#include "benchmarks/report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"

namespace stagecraft::bench {
namespace {

constexpr double kMicro = 1e6;

std::string time_text(const Sample& sample) {
  const double us = sample.seconds * kMicro;
  const std::string number = us < 10     ? fmt::format("{:.2f} us", us)
                             : us < 1000 ? fmt::format("{:.1f} us", us)
                                         : fmt::format("{:.2f} ms", us / 1000);
  return fmt::format("{} +-{:.0f}%", number, sample.spread * 100);
}

std::string goal_text(const Row& row) {
  if (!row.goal) return "informative";
  return fmt::format("<= {:.2f} {}", *row.goal, row.ratio() <= *row.goal ? "met" : "MISSED");
}

}  // namespace

std::string table(const std::string& name, const std::vector<Row>& rows) {
  std::size_t what = name.size();
  std::size_t reference = 9;
  for (const auto& row : rows) {
    what = std::max(what, row.what.size());
    reference = std::max(reference, row.reference.size());
  }
  const auto line = [&](const auto& a, const auto& b, const auto& c, const auto& d, const auto& e,
                        const auto& f, const auto& g) {
    return fmt::format("{:<{}}  {:>16}  {:>16}  {:<{}}  {:>6}  {:>5}  {}\n", a, what, b, c, d,
                       reference, e, f, g);
  };
  std::string out = line(name, "ours", "reference", "of", "ratio", "A/A", "goal");
  for (const auto& row : rows) {
    out += line(row.what, time_text(row.ours), time_text(row.theirs), row.reference,
                fmt::format("{:.3f}", row.ratio()), fmt::format("+-{:.0f}%", row.noise * 100),
                goal_text(row));
  }
  return out;
}

std::string table(const std::vector<Quantity>& quantities) {
  std::size_t what = 0;
  for (const auto& quantity : quantities) what = std::max(what, quantity.what.size());
  std::string out;
  for (const auto& [name, value, unit, limit, noise] : quantities) {
    out += fmt::format("{:<{}}  {:>9.4g} {}", name, what, value, unit);
    if (noise) out += fmt::format("  A/A +-{:.2g}", *noise);
    if (limit) out += fmt::format("  <= {:g} {}", *limit, value <= *limit ? "met" : "MISSED");
    out += '\n';
  }
  return out;
}

std::string write_json(const std::string& name, const std::vector<Row>& rows,
                       const std::vector<Quantity>& quantities, const std::string& directory) {
  nlohmann::ordered_json json;
  json["name"] = name;
  json["rows"] = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    nlohmann::ordered_json entry;
    entry["what"] = row.what;
    entry["reference_name"] = row.reference;
    entry["ours"] = row.ours.seconds * kMicro;
    entry["reference"] = row.theirs.seconds * kMicro;
    entry["unit"] = "us";
    entry["ratio"] = row.ratio();
    entry["goal"] = nullptr;
    entry["informative"] = !row.goal;
    entry["met"] = nullptr;
    if (row.goal) {
      entry["goal"] = *row.goal;
      entry["met"] = row.ratio() <= *row.goal;
    }
    entry["ours_spread"] = row.ours.spread;
    entry["reference_spread"] = row.theirs.spread;
    entry["noise"] = row.noise;
    json["rows"].push_back(std::move(entry));
  }
  json["quantities"] = nlohmann::ordered_json::array();
  for (const auto& quantity : quantities) {
    nlohmann::ordered_json entry;
    entry["what"] = quantity.what;
    entry["value"] = quantity.value;
    entry["unit"] = quantity.unit;
    entry["limit"] = nullptr;
    entry["met"] = nullptr;
    if (quantity.limit) {
      entry["limit"] = *quantity.limit;
      entry["met"] = quantity.value <= *quantity.limit;
    }
    entry["noise"] = nullptr;
    if (quantity.noise) entry["noise"] = *quantity.noise;
    json["quantities"].push_back(std::move(entry));
  }
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  std::string path = directory + "/" + name + ".json";
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) throw Error(fmt::format("cannot write {}", path));
  return path;
}

}  // namespace stagecraft::bench
