// Which part of time and of the lanes is on the screen, and where things are there. Units: pixels of
// CSS; `y` is how far the lanes are scrolled up.

const kGutter = 74;   // left of the lanes: names of the ranks
const kAxis = 26;     // above them: the time axis
const kRight = 18;
const kTop = 5;       // between the axis and the first lane
const kLowest = 7, kHighest = 160;  // a lane with its memory and the gap below
const kLeastForMemory = 18;         // lower lanes have room for bars only

function makeView(data) {
  const view = { data, t0: 0, t1: 1, y: 0, pitch: 60, width: 800, height: 400, memory: true };

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
  view.barHeight = () => view.pitch - view.gap() - view.memoryHeight();
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

  // The rectangle of a bar.
  view.boxOf = (bar) => {
    const parts = partsOf(data, bar);
    const height = view.barHeight() / parts;
    const x = view.xOf(data.barStart[bar]);
    return { x, y: view.topOf(data.barRank[bar]) + height * partOf(data, bar),
             width: view.xOf(data.barEnd[bar]) - x, height };
  };
  // The bar at a point, -1 for none.
  view.barAt = (x, y) => {
    const rank = view.rankAt(y);
    if (x < kGutter || y < kAxis || rank < 0 || rank >= data.ranks) return -1;
    const inside = y - view.topOf(rank);
    if (inside < 0 || inside > view.barHeight()) return -1;
    const time = view.timeOf(x);
    const end = data.first[rank + 1];
    for (let bar = firstAbove(data.barEnd, data.first[rank], end, time); bar < end && data.barStart[bar] <= time; bar++) {
      const part = Math.min(partsOf(data, bar) - 1, Math.floor((inside / view.barHeight()) * partsOf(data, bar)));
      if (part === partOf(data, bar)) return bar;
    }
    return -1;
  };
  return view;
}
