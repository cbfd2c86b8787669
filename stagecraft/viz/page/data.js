// What the page shows, as typed arrays: bars (F, I, W, B) in the order of ranks and time, marks (all
// other actions), memory samples, the bars of the plan if there is one; and who waits for whom. Nothing
// here draws.

const kForward = 0, kInput = 1, kWeight = 2, kBackward = 3;
const kLongNames = ["Forward", "Backward, inputs", "Backward, weights", "Backward"];

function unpack(text) {
  const colon = text.indexOf(":");
  const bytes = Uint8Array.from(atob(text.slice(colon + 1)), (c) => c.charCodeAt(0));
  const kinds = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array, f64: Float64Array };
  return new kinds[text.slice(0, colon)](bytes.buffer);
}

// Where each rank's entries start; one more entry than ranks.
function firsts(counts) {
  const first = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) first[i + 1] = first[i] + counts[i];
  return first;
}

function addLengths(start, length) {
  const end = new Float64Array(start.length);
  for (let i = 0; i < end.length; i++) end[i] = start[i] + length[i];
  return end;
}

function readData() {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const data = unpackAll(raw);
  realUnits = raw.realUnits === true;
  indexBars(data);
  data.markFirst = firsts(data.markCounts);
  data.memoryFirst = firsts(data.memoryCounts);
  data.markEnd = addLengths(data.markStart, data.markLength);
  for (const bar of data.path) data.onPath[bar] = 1;
  data.mostChunks = data.laneChunks.length ? Math.max(...data.laneChunks) : 1;
  if (raw.plan) {
    const { ranks, stages, microbatches, names, palette, laneChunks } = data;
    data.plan = { ...unpackAll(raw.plan), ranks, stages, microbatches, names, palette, laneChunks };
    indexBars(data.plan);
  }

  data.producers = Array.from({ length: data.stages }, () => []);
  data.consumers = Array.from({ length: data.stages }, () => []);
  for (let i = 0; i < data.edgeFrom.length; i++) {
    if (data.edgeTo[i] >= data.stages) continue;
    data.producers[data.edgeTo[i]].push(data.edgeFrom[i]);
    data.consumers[data.edgeFrom[i]].push(data.edgeTo[i]);
  }
  return data;
}

function unpackAll(raw) {
  const data = { ...raw };  // texts that are no numbers: title, subtitle, level
  for (const key in raw) {
    if (typeof raw[key] === "string" && !["title", "subtitle", "level"].includes(key)) data[key] = unpack(raw[key]);
  }
  return data;
}

// What can be said of bars as they are, of the page's own or the plan's.
function indexBars(data) {
  data.size = data.barStart.length;
  data.first = firsts(data.barCounts);
  data.barEnd = addLengths(data.barStart, data.barLength);
  // When an action itself ran: within the time of its bar, which is its whole overlap's.
  data.runStart = data.runStart || data.barStart;
  data.runLength = data.runLength || data.barLength;
  data.runEnd = addLengths(data.runStart, data.runLength);
  data.barRank = new Uint32Array(data.size);
  for (let r = 0; r < data.ranks; r++) data.barRank.fill(r, data.first[r], data.first[r + 1]);
  data.onPath = new Uint8Array(data.size);

  data.types = [];
  const used = new Set(data.barType);
  for (const type of [kForward, kInput, kWeight, kBackward]) if (used.has(type)) data.types.push(type);
  let total = 0;
  let shortest = Infinity;
  for (let i = 0; i < data.size; i++) {
    const length = data.barLength[i];
    total += length;
    if (length > 0 && length < shortest) shortest = length;
  }
  data.meanLength = data.size > 0 ? total / data.size : 0;
  data.shortest = shortest === Infinity ? Math.max(data.makespan, 1) : shortest;

  // busy[type][i]: how long the bars before i ran, of this type; an overlap's time is divided by parts.
  data.busy = {};
  for (const type of data.types) {
    const sum = (data.busy[type] = new Float64Array(data.size + 1));
    for (let i = 0; i < data.size; i++) {
      sum[i + 1] = sum[i] + (data.barType[i] === type ? data.barLength[i] / partsOf(data, i) : 0);
    }
  }
}

function wholeTime(data) {
  const end = Math.max(data.makespan, data.plan ? data.plan.makespan : 0);
  return end > 0 ? end : 1;
}
function partsOf(data, bar) { return data.barParts ? data.barParts[bar] : 1; }
function partOf(data, bar) { return data.barPart ? data.barPart[bar] : 0; }

// The first index in [from, to) whose value is above `time`, or `to`.
function firstAbove(values, from, to, time) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > time) to = middle;
    else from = middle + 1;
  }
  return from;
}

// How long a rank's bars of each type ran before `time`, into out[type]. `from` is a bar that has not
// ended after it; returns the first bar that has, from where a later time can be looked for.
function busyBefore(data, rank, time, out, from = data.first[rank]) {
  const begin = data.first[rank], end = data.first[rank + 1];
  const { barStart, barEnd, busy, types } = data;
  let at = from;
  for (let steps = 0; at < end && barEnd[at] <= time; at++) {
    if (++steps === 8) {
      at = firstAbove(barEnd, at, end, time);
      break;
    }
  }
  for (let k = 0; k < types.length; k++) out[types[k]] = busy[types[k]][at] - busy[types[k]][begin];
  for (let i = at; i < end && barStart[i] < time; i++) {
    out[data.barType[i]] += (time - barStart[i]) / partsOf(data, i);
  }
  return at;
}

// `count` numbers from `first` to `last`.
function spread(first, last, count) {
  const values = new Float64Array(count);
  for (let i = 0; i < count; i++) values[i] = first + ((last - first) * i) / Math.max(1, count - 1);
  return values;
}

function actionText(data, bar) {
  return `${data.barStage[bar]}${data.names[data.barType[bar]]}${data.barMicrobatch[bar]}`;
}
function markText(data, mark) {
  const microbatch = data.markMicrobatch[mark];
  return `${data.markStage[mark]}${data.names[data.markType[mark]]}${microbatch ? microbatch - 1 : ""}`;
}

// The bar of (stage, type, microbatch), -1 when there is none. The table is made when it is first used.
function findBar(data, stage, type, microbatch) {
  if (!data.table) {
    data.table = new Map();
    for (let i = 0; i < data.size; i++) data.table.set(barKey(data, data.barStage[i], data.barType[i], data.barMicrobatch[i]), i);
  }
  return data.table.get(barKey(data, stage, type, microbatch)) ?? -1;
}
function barKey(data, stage, type, microbatch) {
  return (stage * data.microbatches + microbatch) * 4 + type;
}

// The bar of `to` (the page's data or its plan) that is bar `bar` of `from`, -1 when there is none.
function sameBar(from, to, bar) {
  return findBar(to, from.barStage[bar], from.barType[bar], from.barMicrobatch[bar]);
}

function collect(data, wanted) {
  const bars = [];
  for (const [stage, types, microbatch] of wanted) {
    for (const type of types) {
      const bar = findBar(data, stage, type, microbatch);
      if (bar >= 0) bars.push(bar);
    }
  }
  return bars;
}

// The bars whose results this bar needs.
function needs(data, bar) {
  const stage = data.barStage[bar], type = data.barType[bar], m = data.barMicrobatch[bar];
  if (type === kForward) return collect(data, data.producers[stage].map((s) => [s, [kForward], m]));
  if (type === kWeight) return collect(data, [[stage, [kInput], m]]);
  return collect(data, [[stage, [kForward], m], ...data.consumers[stage].map((s) => [s, [kInput, kBackward], m])]);
}

// The bars that need this bar's result.
function neededBy(data, bar) {
  const stage = data.barStage[bar], type = data.barType[bar], m = data.barMicrobatch[bar];
  if (type === kWeight) return [];
  if (type === kForward) {
    return collect(data, [[stage, [kInput, kBackward], m], ...data.consumers[stage].map((s) => [s, [kForward], m])]);
  }
  const own = type === kInput ? [[stage, [kWeight], m]] : [];
  return collect(data, [...own, ...data.producers[stage].map((s) => [s, [kInput, kBackward], m])]);
}
