// Which part of time and of the lanes is on the screen, and where things are there. Units: pixels of
// CSS; `y` is how far the lanes are scrolled up.

const kGutter = 74;   // left of the lanes: names of the ranks
const kAxis = 26;     // above them: the time axis
const kRight = 18;
const kTop = 5;       // between the axis and the first lane
const kLowest = 7, kHighest = 160;  // a lane with its memory and the gap below
const kLeastForMemory = 18;         // lower lanes have room for bars only
const kLeastForPlan = 12;           // likewise
const kPlanGap = 2;                 // between bars and the plan's below them

function makeView(data) {
  const view = { data, t0: 0, t1: 1, y: 0, pitch: 60, width: 800, height: 400,
                 memory: data.memoryTime.length > 0, plan: true };

  view.plotWidth = () => Math.max(10, view.width - kGutter - kRight);
  view.plotHeight = () => Math.max(10, view.height - kAxis);
  view.scale = () => view.plotWidth() / (view.t1 - view.t0);
  view.xOf = (time) => kGutter + (time - view.t0) * view.scale();
  view.timeOf = (x) => view.t0 + (x - kGutter) / view.scale();
  view.topOf = (rank) => kAxis + kTop + rank * view.pitch - view.y;
  view.lastTime = () => view.timeOf(view.width);
  view.rankAt = (y) => Math.floor((y - kAxis - kTop + view.y) / view.pitch);
  view.gap = () => Math.min(14, Math.max(1, view.pitch * 0.16));
  view.memoryHeight = () => (view.memory && view.pitch >= kLeastForMemory ? (view.pitch - view.gap()) * 0.34 : 0);
  // With the gap above it.
  view.planHeight = () => (data.plan && view.plan && view.pitch >= kLeastForPlan ? kPlanGap + Math.max(3, (view.pitch - view.gap()) * 0.15) : 0);
  view.barHeight = () => view.pitch - view.gap() - view.memoryHeight() - view.planHeight();
  view.planTopOf = (rank) => view.topOf(rank) + view.barHeight() + kPlanGap;
  view.memoryFloorOf = (rank) => view.topOf(rank) + view.pitch - view.gap();
  view.end = () => wholeTime(data);

  view.clamp = () => {
    const longest = view.end() * 1.04;
    const span = Math.min(longest, Math.max(view.t1 - view.t0, Math.min(data.shortest / 8, longest)));
    const margin = span * 0.5;
    const t0 = Math.min(Math.max(view.t0, -margin), view.end() - span + margin);
    const whole = span >= view.end();
    view.t0 = whole ? Math.min(0, Math.max(t0, view.end() - span)) : t0;
    view.t1 = view.t0 + span;
    view.pitch = Math.min(kHighest, Math.max(kLowest, view.pitch));
    const hidden = data.ranks * view.pitch - view.plotHeight() + kTop + 8;
    view.y = Math.min(Math.max(0, view.y), Math.max(0, hidden));
  };
  view.fit = () => {
    view.t0 = 0;
    view.t1 = view.end();
    view.fitLanes();
  };
  // All lanes at once, as high as there is room; stays so when the window changes.
  view.fitLanes = () => {
    view.y = 0;
    view.fitted = true;
    view.pitch = Math.min(128, Math.max(kLowest, (view.plotHeight() - kTop - 6) / Math.max(1, data.ranks)));
    view.clamp();
  };
  // Shows a stretch of time; factor > 1 shows less. `x` stays where it is.
  view.zoom = (factor, x = kGutter + view.plotWidth() / 2) => {
    const time = view.timeOf(x);
    const span = (view.t1 - view.t0) / factor;
    const limited = Math.min(view.end() * 1.04, Math.max(span, data.shortest / 8));
    const share = (time - view.t0) / (view.t1 - view.t0);
    view.t0 = time - limited * share;
    view.t1 = view.t0 + limited;
    view.clamp();
  };
  view.zoomLanes = (factor, y = kAxis + view.plotHeight() / 2) => {
    const at = (y - kAxis + view.y) / view.pitch;
    view.fitted = false;
    view.pitch = Math.min(kHighest, Math.max(kLowest, view.pitch * factor));
    view.y = at * view.pitch - (y - kAxis);
    view.clamp();
  };
  view.pan = (dx, dy) => {
    const time = dx / view.scale();
    view.t0 += time;
    view.t1 += time;
    view.y += dy;
    view.clamp();
  };
  view.center = (time) => view.pan((time - (view.t0 + view.t1) / 2) * view.scale(), 0);
  view.visibleRanks = () => [Math.max(0, view.rankAt(kAxis)), Math.min(data.ranks - 1, view.rankAt(view.height))];

  const boxIn = (bars, bar, top, laneHeight) => {
    const height = laneHeight / partsOf(bars, bar);
    const x = view.xOf(bars.barStart[bar]);
    return { x, y: top + height * partOf(bars, bar), width: view.xOf(bars.barEnd[bar]) - x, height };
  };
  // The rectangle of a bar, and of a bar of the plan.
  view.boxOf = (bar) => boxIn(data, bar, view.topOf(data.barRank[bar]), view.barHeight());
  view.planBoxOf = (bar) => boxIn(data.plan, bar, view.planTopOf(data.plan.barRank[bar]), view.planHeight() - kPlanGap);
  const barIn = (bars, rank, time, share) => {
    const end = bars.first[rank + 1];
    for (let bar = firstAbove(bars.barEnd, bars.first[rank], end, time); bar < end && bars.barStart[bar] <= time; bar++) {
      const part = Math.min(partsOf(bars, bar) - 1, Math.floor(share * partsOf(bars, bar)));
      if (part === partOf(bars, bar)) return bar;
    }
    return -1;
  };
  // The bar at a point, -1 for none; in the plan's lane, the bar that was planned there.
  view.barAt = (x, y) => {
    const rank = view.rankAt(y);
    if (x < kGutter || y < kAxis || rank < 0 || rank >= data.ranks) return -1;
    const inside = y - view.topOf(rank);
    if (inside < 0) return -1;
    if (inside <= view.barHeight()) return barIn(data, rank, view.timeOf(x), inside / view.barHeight());
    const below = y - view.planTopOf(rank), height = view.planHeight() - kPlanGap;
    if (view.planHeight() === 0 || below < 0 || below > height) return -1;
    const planned = barIn(data.plan, rank, view.timeOf(x), below / height);
    return planned < 0 ? -1 : sameBar(data.plan, data, planned);
  };
  return view;
}
