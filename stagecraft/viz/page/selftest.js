// With #selftest the page tries itself out and writes what came of it into <html data-stagecraft>, for
// tests without a person in front of the screen.

// Milliseconds that a frame takes, the best of three.
function frameTime(paint) {
  let best = Infinity;
  for (let i = 0; i < 3; i++) {
    const begin = performance.now();
    paint();
    best = Math.min(best, performance.now() - begin);
  }
  return Math.round(best * 10) / 10;
}

// The pointer over an action, or over where it was planned, is told when that was. Returns how many
// were tried.
function selfTestPlan(app, check) {
  const { data, view, chart, tip } = app;
  const corner = chart.getBoundingClientRect();
  const moveTo = (box) => chart.dispatchEvent(new PointerEvent("pointermove", {
    clientX: corner.left + box.x + box.width / 2, clientY: corner.top + box.y + box.height / 2 }));
  const stride = Math.max(1, Math.floor(data.size / 40));
  let tried = 0;
  view.fit();
  if (view.planHeight() === 0) return 0;  // too many ranks for it at once
  app.paint();
  check(data.plan.size === 0 || app.drawn.planned > 0, "no bar of the plan is drawn");
  for (let bar = 0; bar < data.size; bar += stride) {
    const planned = sameBar(data, data.plan, bar);
    if (planned < 0 || view.boxOf(bar).width < 2 || view.planBoxOf(planned).width < 2) continue;
    tried++;
    const wanted = `planned${timeText(data.plan.runStart[planned])} to ${timeText(data.plan.runEnd[planned])}, takes ${timeText(data.plan.runLength[planned])}`;
    for (const box of [view.boxOf(bar), view.planBoxOf(planned)]) {
      app.setHover(-1);
      moveTo(box);
      check(app.hover === bar, `${actionText(data, bar)} not found where it was planned`);
      check(tip.textContent.includes(wanted), `tooltip of ${actionText(data, bar)} has no "${wanted}"`);
    }
  }
  app.setHover(-1);
  return tried;
}

function selfTest(app) {
  const { data, view } = app;
  const problems = [];
  const check = (holds, what) => { if (!holds) problems.push(what); };
  const paint = () => app.paint();

  view.fit();
  paint();
  const overview = { ...app.drawn };
  check(overview.ranks === Math.min(data.ranks, overview.ranks) && (data.size === 0 || overview.ranks > 0), "fit draws no rank");

  // Zooming keeps the time under the pointer and the chart in its place, and in and out again is where it was.
  const top = app.chart.getBoundingClientRect().top;
  const x = kGutter + view.plotWidth() * 0.3;
  const time = view.timeOf(x);
  view.zoom(8, x);
  paint();
  const zoomed = { ...app.drawn };
  check(app.chart.getBoundingClientRect().top === top, "zooming moves the chart");
  if (data.makespan > 8 * data.shortest) check(Math.abs(view.timeOf(x) - time) < 1e-6 * view.end(), "zoom loses its place");
  const t0 = view.t0;
  view.pan(40, 0);
  view.pan(-40, 0);
  paint();
  check(Math.abs(view.t0 - t0) < 1e-6 * view.end(), "pan there and back ends elsewhere");

  // Every bar is found at its own middle, and its tooltip names it.
  let hits = 0, tried = 0;
  const stride = Math.max(1, Math.floor(data.size / 400));
  for (let bar = 0; bar < data.size; bar += stride) {
    if (data.barLength[bar] <= 0) continue;
    tried++;
    view.fit();
    view.zoom((40 / data.barLength[bar]) / view.scale());
    view.center((data.barStart[bar] + data.barEnd[bar]) / 2);
    view.y = data.barRank[bar] * view.pitch;
    view.clamp();
    const box = view.boxOf(bar);
    const found = view.barAt(box.x + box.width / 2, box.y + box.height / 2);
    if (found === bar) hits++;
    app.setHover(found, 10, 10);
    if (tried % 20 === 1) {
      paint();
      check(app.tip.textContent.includes(actionText(data, bar)), `tooltip of ${actionText(data, bar)}`);
    }
  }
  check(hits === tried, `${tried - hits} of ${tried} bars not found where they are`);
  app.setHover(-1);
  const planned = data.plan ? selfTestPlan(app, check) : 0;

  // What a bar needs has ended when it starts, and knows that it is needed.
  let links = 0;
  for (let bar = 0; bar < data.size; bar += stride) {
    if (realUnits && data.runLength[bar] === 0) continue;  // it was still waiting when the step failed
    for (const other of needs(data, bar)) {
      links++;
      check(data.runEnd[other] <= data.runStart[bar] + 1e-9 * view.end(), `${actionText(data, bar)} starts before ${actionText(data, other)} ends`);
      check(neededBy(data, other).includes(bar), `${actionText(data, other)} does not know ${actionText(data, bar)}`);
    }
    for (const other of neededBy(data, bar)) check(needs(data, other).includes(bar), `${actionText(data, other)} does not need ${actionText(data, bar)}`);
  }

  view.fit();
  let slots = 0;
  for (const name of Object.keys(app.layers)) {
    app.flipLayer(name);
    paint();
    slots = Math.max(slots, app.drawn.slots);
    app.flipLayer(name);
  }
  for (const type of data.types) {
    app.shown[type] = false;
    paint();
    app.shown[type] = true;
  }
  view.zoomLanes(2);
  paint();
  for (const key of ["+", "-", "ArrowLeft", "ArrowRight", "ArrowDown", "]", "[", "n", "n", "p", "Escape", "d", "d", "?", "?", "0"]) {
    document.dispatchEvent(new KeyboardEvent("keydown", { key }));
  }
  app.chart.dispatchEvent(new WheelEvent("wheel", { deltaY: -120, clientX: 300, clientY: 200, cancelable: true }));
  view.fit();
  const frame = frameTime(paint);
  // Bars just wide enough to be drawn one by one: the most there can be on the screen.
  view.zoom((kNarrow * 1.01) / Math.max(data.meanLength * view.scale(), 1e-9));
  const fullFrame = frameTime(paint);
  const full = { ...app.drawn };

  return { planned, slots, actions: data.size, ranks: data.ranks, overview, zoomed, hits, tried, links, path: data.path.length,
           title: document.getElementById("title").textContent, frame, full, fullFrame, problems, errors: app.errors };
}
