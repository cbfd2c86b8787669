// Draws the lanes. Bars wide enough to see are drawn one by one; where there are several in a pixel,
// stacked bands show how time divides among the types, averaged over some bars.

const kNarrow = 3;        // mean width of a bar, in pixels, below which bands are drawn
const kBandBars = 6;      // how many bars a point of a band averages: two or three types a period
const kBandStep = 2;      // distance of a band's points, in pixels

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const theme = {};
  for (const name of ["page", "panel", "ink", "soft", "faint", "line", "lane", "grid", "memory", "path", "accent"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  theme.font = getComputedStyle(document.body).fontFamily;
  return theme;
}

// A canvas that fills its box, in device pixels.
function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.ratio = ratio;
  return context;
}

function tickStep(length, count) {
  const rough = length / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const times = rough / power;
  return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

function drawLanes(app) {
  const { data, view, theme } = app;
  const context = prepare(app.lanesCanvas, view.width, view.height);
  const stats = { bars: 0, bands: 0, ranks: 0, texts: 0, planned: 0, slots: 0 };
  const ticks = axisTicks(view);
  const [firstRank, lastRank] = view.visibleRanks();

  context.save();
  context.beginPath();
  context.rect(kGutter, kAxis, view.width - kGutter, view.height - kAxis);
  context.clip();
  const left = Math.max(kGutter, view.xOf(0)), right = Math.min(view.width, view.xOf(view.end()));
  context.fillStyle = theme.lane;
  for (let rank = firstRank; rank <= lastRank; rank++) {
    context.fillRect(left, view.topOf(rank), right - left, view.barHeight());
  }
  context.fillStyle = theme.grid;
  const bottom = Math.min(view.height, view.topOf(data.ranks) - view.gap());
  for (const tick of ticks.times) context.fillRect(snap(context, view.xOf(tick)), kAxis, 1, bottom - kAxis);

  for (let rank = firstRank; rank <= lastRank; rank++) {
    stats.ranks++;
    drawLane(app, context, { bars: data, rank, top: view.topOf(rank), height: view.barHeight() }, stats);
    if (view.planHeight() > 0) drawPlan(app, context, rank, stats);
    if (view.memoryHeight() > 0) {
      if (app.layers.slots) drawSlots(app, context, rank, stats);
      else drawMemory(app, context, rank);
    }
    if (app.layers.marks) drawMarks(app, context, rank);
  }
  context.restore();
  drawLabels(app, context, firstRank, lastRank);
  drawAxis(app, context, ticks);
  app.drawn = stats;
}

function snap(context, x) { return Math.round(x * context.ratio) / context.ratio; }

// A lane: whose bars (the page's or the plan's), which rank, where, and how faint.
function drawLane(app, context, lane, stats) {
  if (lane.bars.meanLength * app.view.scale() < kNarrow) stats.bands += drawBands(app, context, lane);
  else drawBars(app, context, lane, stats);
}

function drawPlan(app, context, rank, stats) {
  const { data, view } = app;
  const own = { bars: 0, bands: 0, texts: 0 };
  drawLane(app, context, { bars: data.plan, rank, top: view.planTopOf(rank), height: view.planHeight() - kPlanGap, faint: 0.5 }, own);
  stats.planned += own.bars + own.bands;
}

function drawBars(app, context, lane, stats) {
  const { view, theme } = app;
  const { bars: data, rank, top, height, faint } = lane;
  const begin = firstAbove(data.barEnd, data.first[rank], data.first[rank + 1], view.t0);
  const palette = data.palette[data.laneChunks[rank]];
  const fontSize = Math.min(13, Math.max(8, height * 0.5));
  const font = (size) => `500 ${size}px ${theme.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const until = view.lastTime(), scale = view.scale(), origin = view.xOf(0);
  for (let bar = begin; bar < data.first[rank + 1] && data.barStart[bar] < until; bar++) {
    const type = data.barType[bar];
    const [color, ink] = palette[data.names[type]][data.barChunk[bar]];
    const parts = partsOf(data, bar);
    const x0 = snap(context, origin + data.barStart[bar] * scale);
    const x1 = snap(context, origin + data.barEnd[bar] * scale);
    const edge = x1 - x0 >= 4 ? 1 : 0;
    const width = Math.max(x1 - x0 - edge, 1 / context.ratio);
    const part = height / parts;
    const y = top + part * partOf(data, bar);
    const h = part - (parts > 1 && partOf(data, bar) + 1 < parts ? 1 : 0);
    const faded = !app.shown[type] ? 0.1 : faint || (app.layers.path && !data.onPath[bar] ? 0.26 : 1);
    context.globalAlpha = faded;
    context.fillStyle = color;
    if (width >= 12 && h >= 12) {
      context.beginPath();
      context.roundRect(x0, y, width, h, 2.5);
      context.fill();
    } else {
      context.fillRect(x0, y, width, h);
    }
    stats.bars++;
    if (!app.shown[type] || faint) continue;
    const size = Math.min(fontSize, h * 0.68);
    const long = width > 62 && size >= 9;
    const text = long ? actionText(data, bar) : String(data.barMicrobatch[bar]);
    if (size < 6 || text.length * size * 0.6 + 3 > width) {
      const small = (width - 2) / (text.length * 0.6);
      if (long || size < 6 || small < 7) continue;
      context.font = font(small);
    } else {
      context.font = font(size);
    }
    context.fillStyle = ink;
    // A bar that reaches over the edge keeps its number on the screen.
    const from = Math.max(x0, kGutter), to = Math.min(x0 + width, view.width);
    if (to - from < text.length * size * 0.6) continue;
    context.fillText(text, (from + to) / 2, y + h / 2 + 0.5);
    stats.texts++;
  }
  context.globalAlpha = 1;
}

// Over how much time a point of a band averages, points being `step` apart.
function bandWindow(data, step) {
  return data.meanLength * kBandStep < kNarrow * step ? Math.max(step, kBandBars * data.meanLength) : step;
}

// For each type its share of the time around each point, within [begin, end]: shares[k][i], k as in
// data.types.
function bandShares(data, rank, times, window, begin, end) {
  const shares = data.types.map(() => new Float64Array(times.length));
  const before = [0, 0, 0, 0], after = [0, 0, 0, 0];
  let left = data.first[rank], right = left;
  for (let i = 0; i < times.length; i++) {
    const a = Math.max(begin, times[i] - window / 2), b = Math.min(end, times[i] + window / 2);
    if (b <= a) continue;
    left = busyBefore(data, rank, a, before, left);
    right = busyBefore(data, rank, b, after, right);
    for (let k = 0; k < shares.length; k++) {
      shares[k][i] = Math.min(1, (after[data.types[k]] - before[data.types[k]]) / (b - a));
    }
  }
  return shares;
}

// Stacks shares from the floor up.
function stackBands(context, shares, colors, xs, floor, height) {
  const low = new Float64Array(xs.length);
  for (let k = 0; k < shares.length; k++) {
    context.beginPath();
    for (let i = 0; i < xs.length; i++) context.lineTo(xs[i], floor - low[i] * height);
    for (let i = xs.length - 1; i >= 0; i--) {
      low[i] = Math.min(1, low[i] + shares[k][i]);
      context.lineTo(xs[i], floor - low[i] * height);
    }
    context.fillStyle = colors[k];
    context.fill();
  }
}

// The visible stretches of time in which the rank is never idle for longer than `gap`.
function busyStretches(data, view, rank, gap) {
  const stretches = [];
  let bar = firstAbove(data.barEnd, data.first[rank], data.first[rank + 1], view.t0);
  const until = view.lastTime();
  for (; bar < data.first[rank + 1] && data.barStart[bar] < until; bar++) {
    const last = stretches[stretches.length - 1];
    if (last && data.barStart[bar] - last[1] <= gap) last[1] = Math.max(last[1], data.barEnd[bar]);
    else stretches.push([data.barStart[bar], data.barEnd[bar]]);
  }
  return stretches;
}

// Returns how many bands were drawn.
function drawBands(app, context, lane) {
  const { view } = app;
  const { bars: data, rank, top, height, faint } = lane;
  const step = kBandStep / view.scale();
  const window = bandWindow(data, step);
  const shown = data.types.map((type, k) => k).filter((k) => app.shown[data.types[k]]);
  const colors = shown.map((k) => data.palette[1][data.names[data.types[k]]][0][0]);
  context.globalAlpha = faint || (app.layers.path ? 0.3 : 1);
  // Averaging stops at the ends of a stretch, so that these stay sharp.
  for (const [begin, end] of busyStretches(data, view, rank, Math.max(window / 2, 2 * step))) {
    const from = Math.max(begin, view.t0 - step), to = Math.min(end, view.lastTime() + step);
    const points = Math.max(2, Math.ceil((to - from) / step) + 1);
    const times = spread(from, to, points);
    const shares = bandShares(data, rank, times, window, begin, end);
    stackBands(context, shown.map((k) => shares[k]), colors, spread(view.xOf(from), view.xOf(to), points), top + height, height);
  }
  context.globalAlpha = 1;
  return shown.length;
}

// When the activation of each forward is released.
function releaseTimes(data) {
  if (data.slotEnd) return data.slotEnd;
  data.slotEnd = new Float64Array(data.size);
  for (let bar = 0; bar < data.size; bar++) {
    if (!data.barSlot[bar]) continue;
    const stage = data.barStage[bar], microbatch = data.barMicrobatch[bar];
    const whole = findBar(data, stage, kBackward, microbatch);
    const last = whole >= 0 ? whole : findBar(data, stage, kWeight, microbatch);
    data.slotEnd[bar] = last >= 0 ? data.runEnd[last] : wholeTime(data);  // a step that failed
  }
  return data.slotEnd;
}

// A row for each buffer of the rank, and in it the activations that have it one after the other.
function drawSlots(app, context, rank, stats) {
  const { data, view } = app;
  const ends = releaseTimes(data);
  const height = view.memoryHeight() - 2;
  const row = height / Math.max(1, data.rankSlots[rank]);
  const top = view.memoryFloorOf(rank) - height;
  const colors = data.palette[data.laneChunks[rank]][data.names[kForward]];
  const until = view.lastTime();
  for (let bar = data.first[rank]; bar < data.first[rank + 1] && data.barStart[bar] < until; bar++) {
    if (!data.barSlot[bar] || ends[bar] < view.t0) continue;
    const x0 = view.xOf(data.runStart[bar]), x1 = view.xOf(ends[bar]);
    context.fillStyle = colors[data.barChunk[bar]][0];
    context.fillRect(x0, top + row * (data.barSlot[bar] - 1), Math.max(0.5, x1 - x0 - 1), Math.max(0.5, row - (row >= 3 ? 1 : 0)));
    stats.slots++;
  }
}

function drawMemory(app, context, rank) {
  const { data, view, theme } = app;
  const times = data.memoryTime, values = data.memoryValue;
  const begin = data.memoryFirst[rank], end = data.memoryFirst[rank + 1];
  if (begin === end || data.peak <= 0) return;
  const height = view.memoryHeight() - 2;
  const floor = view.memoryFloorOf(rank);
  const yOf = (value) => floor - (value / data.peak) * height;
  let i = Math.max(begin, firstAbove(times, begin, end, view.t0) - 1);
  const last = Math.min(end, firstAbove(times, i, end, view.lastTime()) + 1);
  const x0 = Math.max(kGutter - 2, view.xOf(0));
  const x1 = Math.min(view.width + 2, view.xOf(view.end()));
  context.beginPath();
  context.moveTo(x0, floor);
  let y = floor;
  // In each pixel the highest sample, so that no peak is lost.
  while (i < last) {
    const x = Math.max(x0, view.xOf(times[i]));
    let most = values[i];
    let next = i + 1;
    while (next < last && view.xOf(times[next]) < x + 0.8) most = Math.max(most, values[next++]);
    context.lineTo(x, y);
    y = yOf(most);
    context.lineTo(x, y);
    const held = yOf(values[next - 1]);
    if (held !== y) {
      context.lineTo(x + 0.8, y);
      y = held;
      context.lineTo(x + 0.8, y);
    }
    i = next;
  }
  context.lineTo(x1, y);
  context.lineTo(x1, floor);
  context.closePath();
  context.globalAlpha = 0.17;
  context.fillStyle = theme.memory;
  context.fill();
  context.globalAlpha = 0.9;
  context.strokeStyle = theme.memory;
  context.lineWidth = view.pitch > 30 ? 1.1 : 0.7;
  context.stroke();
  context.globalAlpha = 1;
}

// Transfers, UNSHARD and the like: small ticks below the bars' upper edge.
function drawMarks(app, context, rank) {
  const { data, view, theme } = app;
  const begin = firstAbove(data.markEnd, data.markFirst[rank], data.markFirst[rank + 1], view.t0 - 1e-12);
  const top = view.topOf(rank);
  let last = -10;
  context.fillStyle = theme.ink;
  for (let mark = begin; mark < data.markFirst[rank + 1] && data.markStart[mark] <= view.lastTime(); mark++) {
    const x = view.xOf(data.markStart[mark]);
    if (x - last < 3) continue;
    last = x;
    context.beginPath();
    context.moveTo(x - 3, top - 1);
    context.lineTo(x + 3, top - 1);
    context.lineTo(x, top + 4);
    context.fill();
  }
}

function axisTicks(view) {
  const step = tickStep(view.t1 - view.t0, view.plotWidth() / 110);
  const times = [];
  for (let i = Math.max(0, Math.ceil(view.t0 / step - 1e-9)); i * step <= Math.min(view.lastTime(), view.end() * (1 + 1e-9)); i++) {
    times.push(i * step);
  }
  return { step, times };
}

function drawAxis(app, context, ticks) {
  const { view, theme } = app;
  context.clearRect(0, 0, view.width, kAxis);
  context.font = `11.5px ${theme.font}`;
  context.textBaseline = "middle";
  context.fillStyle = theme.faint;
  context.textAlign = "right";
  const [unit, unitName] = timeUnit(view.end());
  context.fillText(unitName, kGutter - 16, kAxis - 12);
  context.textAlign = "center";
  context.fillStyle = theme.soft;
  const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(ticks.step / unit) + 1e-9)));
  for (const tick of ticks.times) {
    const x = view.xOf(tick);
    if (x >= kGutter - 1) context.fillText(fixedText(tick / unit, digits), x, kAxis - 12);
  }
}

function drawLabels(app, context, firstRank, lastRank) {
  const { data, view, theme } = app;
  context.fillStyle = theme.page;
  context.fillRect(0, 0, kGutter - 6, view.height);
  context.textAlign = "right";
  context.textBaseline = "middle";
  const pitch = view.pitch;
  const every = Math.max(1, Math.ceil(13 / pitch));
  for (let rank = firstRank; rank <= lastRank; rank++) {
    if (rank % every !== 0) continue;
    const y = view.topOf(rank) + view.barHeight() / 2;
    if (y < kAxis) continue;
    const hovered = app.hover >= 0 && data.barRank[app.hover] === rank;
    context.fillStyle = hovered ? theme.accent : theme.ink;
    context.font = `${pitch >= 22 ? "500 12.5px" : "10.5px"} ${theme.font}`;
    context.fillText(`rank ${rank}`, kGutter - 14, y);
    if (view.memoryHeight() >= 13 && data.rankPeak.length > rank) {
      context.fillStyle = theme.memory;
      context.font = `10.5px ${theme.font}`;
      context.fillText(memoryText(data.rankPeak[rank]), kGutter - 14, view.memoryFloorOf(rank) - view.memoryHeight() / 2 + 1);
    }
  }
}
