#include "stagecraft/plan/left_over.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace stagecraft::plan {
namespace {

constexpr double kMostPairs = 3000;  // pairs of counts that are enumerated

// How many items of this size fit, at most `limit`.
double count_fitting(double room, double each, double limit) {
  if (each <= 0) return limit;
  return std::clamp(std::floor(room / each + 1e-9), 0.0, limit);
}

struct Item {
  double memory = 0;
  double time = 0;
};

double density(const Item& item) {
  return item.time / std::max(1e-12, item.memory);
}

// The most time of items that fit. A part of an item is allowed.
double fill_with_parts(std::vector<Item>& items, double room) {
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return density(a) > density(b); });
  double got = 0;
  for (const Item& item : items) {
    if (item.memory <= 0) {
      got += item.time;
      continue;
    }
    const double share = std::min(1.0, room / item.memory);
    if (share <= 0) break;
    got += share * item.time;
    room -= share * item.memory;
  }
  return got;
}

// The most time of W of at most two stages that fits into a room. Counts whole W if all need the
// same memory, because then the best choice needs no search. Otherwise parts are allowed.
class WeightFill {
 public:
  WeightFill(const Instance& in, const std::vector<int32_t>& on) {
    for (std::size_t i = 0; i < on.size(); ++i) {
      const int32_t s = on[i];
      if (in.time[kW][s] > 0) entries_.push_back({{in.mw[s], in.time[kW][s]}, i});
    }
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return density(a.item) > density(b.item); });
    for (const Entry& entry : entries_) {
      whole_ = whole_ && entry.item.memory == entries_.front().item.memory;
    }
  }

  double most(double room, const double* counts) const {
    double got = 0;
    for (const Entry& entry : entries_) {
      double n = counts[entry.index];
      if (entry.item.memory > 0) {
        double fit = room / entry.item.memory;
        if (whole_) fit = std::floor(fit + 1e-9);
        n = std::min(n, std::max(0.0, fit));
      }
      got += n * entry.item.time;
      room -= n * entry.item.memory;
    }
    return got;
  }

 private:
  struct Entry {
    Item item;
    std::size_t index = 0;
  };
  std::vector<Entry> entries_;
  bool whole_ = true;
};

bool are_alike(const Instance& in, const std::vector<int32_t>& on) {
  for (const int32_t s : on) {
    const int32_t first = on.front();
    if (in.mf[s] != in.mf[first] || in.mw[s] != in.mw[first]) return false;
    for (int k = 0; k < kKinds; ++k) {
      if (in.time[k][s] != in.time[k][first]) return false;
    }
  }
  return true;
}

// All stages have the same costs, so only the total number of microbatches that wait for I matters.
// At least one waits.
double most_left_alike(const Instance& in, const std::vector<int32_t>& on, double room) {
  const int32_t s = on.front();
  const double all = static_cast<double>(on.size()) * in.microbatches;
  const double most = count_fitting(room, in.mf[s], all);
  double best = 0;
  for (double a = 1; a <= std::max(1.0, most); ++a) {
    const double q = count_fitting(room - a * in.mf[s], in.mw[s], all - a);
    best = std::max(best, a * (in.time[kI][s] + in.time[kW][s]) + q * in.time[kW][s]);
  }
  return best;
}

double most_left_counted(const Instance& in, const std::vector<int32_t>& on, double room) {
  const double m = in.microbatches;
  const WeightFill fill(in, on);
  const int32_t last = on.back();
  double counts[2] = {m, m};
  double best = 0;
  const auto inner = [&](double space, double got, std::size_t index) {
    const double most = std::max(1.0, count_fitting(space, in.mf[last], m));
    const double each = in.time[kI][last] + in.time[kW][last];
    for (double a = most; a >= 1; --a) {
      counts[index] = m - a;
      best = std::max(best, got + a * each + fill.most(space - a * in.mf[last], counts));
    }
  };
  if (on.size() == 1) {
    inner(room, 0, 0);
    return best;
  }
  const int32_t first = on.front();
  const double each = in.time[kI][first] + in.time[kW][first];
  for (double a = count_fitting(room, in.mf[first], m); a >= 0; --a) {
    counts[0] = m - a;
    inner(room - a * in.mf[first], a * each, 1);
  }
  return best;
}

}  // namespace

double most_forwards(const Instance& in, int32_t rank) {
  const std::vector<int32_t>& on = in.on[rank];
  const double room = with_slack(in.cap[rank]);
  const double m = in.microbatches;
  if (in.is_uniform && on.size() <= 2) {
    const int32_t last = on.back();
    if (on.size() == 1) return count_fitting(room, in.mf[last], m) * in.time[kF][last];
    const int32_t first = on.front();
    double best = 0;
    for (double a = count_fitting(room, in.mf[first], m); a >= 0; --a) {
      const double b = count_fitting(room - a * in.mf[first], in.mf[last], m);
      best = std::max(best, a * in.time[kF][first] + b * in.time[kF][last]);
    }
    return best;
  }
  if (in.is_uniform && are_alike(in, on)) {
    const int32_t s = on.front();
    return count_fitting(room, in.mf[s], m * static_cast<double>(on.size())) * in.time[kF][s];
  }
  std::vector<Item> items;
  for (const int32_t s : on) {
    items.push_back({in.mf[s] * in.sum_size, in.time[kF][s] * in.sum_size});
  }
  return fill_with_parts(items, room);
}

double most_left_after_forwards(const Instance& in, int32_t rank) {
  const std::vector<int32_t>& on = in.on[rank];
  const double room = with_slack(in.cap[rank]);
  if (in.is_uniform) {
    if (are_alike(in, on)) return most_left_alike(in, on, room);
    double pairs = 1;
    for (const int32_t s : on) pairs *= count_fitting(room, in.mf[s], in.microbatches) + 1;
    if (on.size() == 1 || (on.size() == 2 && pairs <= kMostPairs)) {
      return most_left_counted(in, on, room);
    }
  }
  std::vector<Item> items;
  for (const int32_t s : on) {
    items.push_back({in.mf[s] * in.sum_size, (in.time[kI][s] + in.time[kW][s]) * in.sum_size});
    if (in.time[kW][s] > 0) {
      items.push_back({in.mw[s] * in.sum_size, in.time[kW][s] * in.sum_size});
    }
  }
  return fill_with_parts(items, room);
}

double most_left_after_inputs(const Instance& in, int32_t rank) {
  const std::vector<int32_t>& on = in.on[rank];
  const double room = with_slack(in.cap[rank]);
  if (in.is_uniform && on.size() <= 2) {
    const double m = in.microbatches;
    const double counts[2] = {m, m};
    return WeightFill(in, on).most(room, counts);
  }
  std::vector<Item> items;
  for (const int32_t s : on) {
    items.push_back({in.mw[s] * in.sum_size, in.time[kW][s] * in.sum_size});
  }
  return fill_with_parts(items, room);
}

}  // namespace stagecraft::plan
