// Memory of each rank over time, as it was and as predicted; the loss curve.

// What held at `time`: the value of the last sample not after it.
function sampleAt(samples, time) {
  let low = 0, high = samples.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low > 0 ? samples[low - 1][1] : null;
}

function stepPath(chart, samples, end) {
  if (samples.length === 0) return "";
  let path = `M${chart.xOf(samples[0][0]).toFixed(1)} ${chart.yOf(samples[0][1]).toFixed(1)}`;
  for (let i = 1; i < samples.length; i++) path += `H${chart.xOf(samples[i][0]).toFixed(1)}V${chart.yOf(samples[i][1]).toFixed(1)}`;
  return `${path}H${chart.xOf(end).toFixed(1)}`;
}

// Ticks of memory at powers of two: about four up to `most`.
function byteTicks(most) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(most, 1) / 4)));
  return ticksBetween(0, most, step);
}

function memoryChart(report, rank, most, end) {
  const { recorded, predicted } = rank.memory;
  const [unit, unitName] = timeUnit(end);
  const step = tickStep(end, 5);
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  const chart = makeChart(560, 170,
    { from: 0, to: end, ticks: ticksBetween(0, end, step), text: (tick) => `${fixedText(tick / unit, digits)}${tick === 0 ? "" : ` ${unitName}`}` },
    { from: 0, to: most, ticks: byteTicks(most), text: memoryText }, `Memory of rank ${rank.rank} over time`);
  if (recorded.length > 0) {
    const path = stepPath(chart, recorded, report.step.makespan);
    chart.svg.append(svgElement("path", { d: `${path}V${chart.floor}H${chart.xOf(0)}Z`, fill: "var(--memory)", opacity: 0.16 }));
    chart.svg.append(svgElement("path", { d: path, fill: "none", stroke: "var(--memory)", "stroke-width": 1.4 }));
  }
  if (predicted.length > 0) {
    chart.svg.append(svgElement("path", { d: stepPath(chart, predicted, report.plan.makespan), fill: "none", stroke: "var(--ink)", "stroke-width": 1.1, "stroke-dasharray": "4 3" }));
  }
  chart.listenTo((time, event) => {
    const rows = [];
    const was = sampleAt(recorded, time), will = sampleAt(predicted, time);
    if (was !== null) rows.push(["recorded", memoryText(was)]);
    if (will !== null) rows.push(["predicted", memoryText(will)]);
    showHint(event, `Rank ${rank.rank}, ${timeText(time)}`, rows);
    return time;
  });
  return chart.svg;
}

function addMemory(report) {
  const ranks = report.ranks.filter((rank) => rank.memory.recorded.length + rank.memory.predicted.length > 0);
  const section = addSection("memory", "Memory",
    ranks.length > 0 ? "Bytes of tensors by rank: parameters, gradients and all that comes and goes during the step. " +
      "During an action the curve shows the most that it held. " + report.memory_note
      : "Not measured. Run the step with StepOptions::measure_memory. " + report.memory_note);
  if (ranks.length === 0) return;
  addKey(section, [{ name: "recorded", color: "var(--memory)", line: "line" }, { name: "predicted, on the plan's clock", color: "var(--ink)", line: "line dashed" }]);
  const values = (rank) => [...rank.memory.recorded, ...rank.memory.predicted].map((sample) => sample[1]);
  const most = ranks.reduce((high, rank) => values(rank).reduce((a, b) => Math.max(a, b), high), 1) * 1.04;
  const end = Math.max(report.step.makespan, report.plan?.makespan || 0) || 1;
  const grid = make("div", undefined, "grid");
  for (const rank of ranks) {
    const figure = make("figure");
    const caption = make("figcaption", `Rank ${rank.rank}`);
    const { recorded_peak: was, predicted_peak: will } = rank.memory;
    caption.append(make("span", [was !== null && `peak ${memoryText(was)}`, will !== null && `predicted ${memoryText(will)}`].filter(Boolean).join(" · ")));
    figure.append(caption, memoryChart(report, rank, most, end));
    grid.append(figure);
  }
  section.append(grid);
  const memory = report.ranks.map((rank) => rank.memory);
  const numbers = columnText(kByteUnits, memory.flatMap((m) => [m.parameters, m.gradients, m.recorded_peak, m.predicted_peak]));
  const column = (title, get) => ({ title, unit: numbers.unit, cell: (rank) => (get(rank.memory) === null ? null : numbers.text(get(rank.memory))) });
  addTable(section, [
    { title: "Rank", text: true, cell: (rank) => String(rank.rank) },
    column("Parameters", (m) => m.parameters),
    column("Gradients", (m) => m.gradients),
    column("Recorded peak", (m) => m.recorded_peak),
    column("Predicted peak", (m) => m.predicted_peak),
    { title: "Recorded against predicted", cell: ({ memory: m }) => (m.recorded_peak && m.predicted_peak ? signedPercent(m.recorded_peak / m.predicted_peak - 1) : null) },
    { title: "Predicted peak at", cell: ({ memory: m }) => (m.predicted_at ? make("code", m.predicted_at) : null) },
  ], report.ranks);
}

// At most about `count` points: of each stretch the lowest and the highest.
function thinOut(points, count) {
  if (points.length <= 2 * count) return points;
  const thin = [];
  for (let i = 0; i < count; i++) {
    const part = points.slice(Math.floor((i * points.length) / count), Math.floor(((i + 1) * points.length) / count));
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    thin.push(...(low[0] < high[0] ? [low, high] : low === high ? [low] : [high, low]));
  }
  return thin;
}

function nearest(points, step) {
  return points.reduce((best, point) => (best === null || Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best), null);
}

function addLoss(report) {
  const isFinitePoint = (point) => point[1] !== null;
  const losses = report.losses.filter(isFinitePoint), evaluations = report.evaluations.filter(isFinitePoint);
  const all = [...losses, ...evaluations];
  const lost = report.losses.length + report.evaluations.length - all.length;
  if (all.length + lost === 0) return;
  const section = addSection("loss", "Loss", lost > 0 ? `${plural(lost, "value")} that ${lost === 1 ? "is" : "are"} not finite left out.` : "");
  if (all.length === 0) return;
  const steps = all.map((point) => point[0]), values = all.map((point) => point[1]);
  const range = (list) => list.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [first, last] = range(steps), [low, high] = range(values);
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  // A chart is scaled to the page: a narrow one gets fewer and larger numbers.
  const [width, height, xTicks] = window.innerWidth < 700 ? [460, 220, 5] : [1150, 280, 10];
  const yStep = tickStep(high - low + 2 * pad, 5), xStep = Math.max(1, tickStep(Math.max(1, last - first), xTicks));
  const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(yStep) + 1e-9)));
  if (evaluations.length > 0) {
    addKey(section, [{ name: "training", color: "var(--loss)", line: "line" }, { name: "evaluation", color: "var(--evaluation)", line: "line" }]);
  }
  const chart = makeChart(width, height, { from: first, to: last > first ? last : first + 1, ticks: ticksBetween(first, last, xStep), text: (tick) => numberText(tick) },
    { from: low - pad, to: high + pad, ticks: ticksBetween(low - pad, high + pad, yStep), text: (tick) => tick.toFixed(digits) }, "Loss by step");
  const draw = (points, color, dots) => {
    const path = thinOut(points, 1000).map(([step, loss], i) => `${i ? "L" : "M"}${chart.xOf(step).toFixed(1)} ${chart.yOf(loss).toFixed(1)}`).join("");
    chart.svg.append(svgElement("path", { d: path, fill: "none", stroke: color, "stroke-width": 1.6, "stroke-linejoin": "round" }));
    if (dots || points.length <= 40) {
      for (const [step, loss] of points) chart.svg.append(svgElement("circle", { cx: chart.xOf(step), cy: chart.yOf(loss), r: 2.6, fill: color }));
    }
  };
  if (losses.length > 0) draw(losses, "var(--loss)", false);
  if (evaluations.length > 0) draw(evaluations, "var(--evaluation)", evaluations.length <= 200);
  chart.listenTo((step, event) => {
    const loss = nearest(losses, step), evaluation = nearest(evaluations, step);
    const at = loss ? loss[0] : evaluation[0];
    const rows = [];
    if (loss) rows.push(["loss", fixedText(loss[1], 6)]);
    if (evaluation) rows.push([`evaluation${evaluation[0] === at ? "" : ` at step ${numberText(evaluation[0])}`}`, fixedText(evaluation[1], 6)]);
    showHint(event, `Step ${numberText(at)}`, rows);
    return at;
  });
  const figure = make("figure");
  figure.append(chart.svg);
  figure.style.marginTop = "12px";
  section.append(figure);
}
