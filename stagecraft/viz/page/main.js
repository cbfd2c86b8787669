// Puts it together: state, redraw, what a fragment of the address asks for, the handle for tests.

const errors = [];
window.addEventListener("error", (event) => {
  errors.push(event.message);
  document.documentElement.dataset.errors = errors.join("; ");
});

const app = {
  data: readData(),
  embedded: document.body.classList.contains("report"),  // a part of a page that scrolls
  errors,
  hover: -1,
  selected: -1,
  drawn: { bars: 0, bands: 0, ranks: 0, texts: 0, planned: 0, slots: 0 },
  layers: { memory: true, plan: true, path: false, transfers: false, marks: false, slots: false },
  shown: [true, true, true, true],
  chart: document.getElementById("chart"),
  footer: document.querySelector("footer"),
  tip: document.getElementById("tip"),
  lanesCanvas: document.getElementById("lanes"),
  overlayCanvas: document.getElementById("overlay"),
  overviewCanvas: document.getElementById("overview"),
};
app.view = makeView(app.data);
app.theme = readTheme();

let waiting = false;
app.redraw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; app.paint(); });
};
app.paint = () => {
  drawLanes(app);
  drawOverlay(app);
  drawOverview(app);
  showRange(app);
};

app.setHover = (bar, x, y) => {
  app.chart.classList.toggle("over", bar >= 0);
  if (bar !== app.hover) {
    app.hover = bar;
    if (bar >= 0) fillTip(app, bar);
    else if (app.selected >= 0) app.showSelected();
    else app.tip.hidden = true;
    drawOverlay(app);
  }
  if (bar >= 0) placeTip(app, x, y);
};
app.select = (bar) => {
  app.selected = bar;
  if (bar >= 0) app.showSelected();
  else if (app.hover < 0) app.tip.hidden = true;
  drawOverlay(app);
};
app.showSelected = () => {
  fillTip(app, app.selected);
  const box = app.view.boxOf(app.selected);
  placeTip(app, Math.max(kGutter, box.x + box.width - 10), box.y + box.height - 6);
};
// Marks the next (1) or previous (-1) action of the rank, and brings it onto the screen.
app.step = (by) => {
  const { data, view } = app;
  if (data.size === 0) return;
  const from = app.selected >= 0 ? app.selected : app.hover;
  const bar = from < 0 ? 0 : Math.min(Math.max(from + by, data.first[data.barRank[from]]), data.first[data.barRank[from] + 1] - 1);
  app.hover = -1;
  const middle = (data.barStart[bar] + data.barEnd[bar]) / 2;
  if (middle < view.t0 || middle > view.t1) view.center(middle);
  app.select(bar);
};

app.setLayer = (name, on) => {
  app.layers[name] = on;
  if (name === "plan") app.view.plan = on;
  app.view.memory = app.layers.slots || (app.layers.memory && app.data.memoryTime.length > 0);
  app.layerButtons[name]?.setAttribute("aria-pressed", on);
  app.redraw();
};
app.flipLayer = (name) => { if (app.layerButtons[name]) app.setLayer(name, !app.layers[name]); };
app.toggleKeys = () => {
  const keys = document.getElementById("keys");
  keys.hidden = !keys.hidden;
  document.getElementById("help").setAttribute("aria-expanded", !keys.hidden);
};
app.setTheme = (name) => {
  if (name) document.documentElement.dataset.theme = name;
  app.theme = readTheme();
  app.redraw();
};
app.switchTheme = () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  app.setTheme((document.documentElement.dataset.theme || system) === "dark" ? "light" : "dark");
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.setTheme());

function resize() {
  app.view.width = app.chart.clientWidth;
  app.view.height = app.chart.clientHeight;
  if (app.view.fitted) app.view.fitLanes();
  else app.view.clamp();
  app.paint();
}

// #t=10-20&select=2F5&path&transfers&theme=dark: a view to link to.
function applyFragment() {
  const { data, view } = app;
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("theme")) app.setTheme(wanted.get("theme") === "dark" ? "dark" : "light");
  for (const name of Object.keys(app.layers)) {
    if (wanted.has(name)) app.setLayer(name, wanted.get(name) !== "0" && name in app.layerButtons);
  }
  const time = /^([\d.e+]+)-([\d.e+]+)$/.exec(wanted.get("t") || "");
  if (time && Number(time[2]) > Number(time[1])) {
    view.t0 = Number(time[1]);
    view.t1 = Number(time[2]);
  }
  const lane = Number(wanted.get("lane"));
  if (lane > 0) view.zoomLanes(lane / view.pitch, kAxis);
  view.clamp();
  const action = /^(\d+)([FIWB])(\d+)$/.exec(wanted.get("select") || "");
  if (action) {
    const bar = findBar(data, Number(action[1]), data.names.indexOf(action[2]), Number(action[3]));
    if (bar >= 0) app.select(bar);
  }
}

if (!app.embedded) fillHeader(app.data);
fillTools(app);
fillKeys(app.data);
listen(app);
app.view.fit();
resize();
applyFragment();
app.paint();
new ResizeObserver(() => {
  resize();
  if (app.selected >= 0 && app.hover < 0) app.showSelected();
}).observe(app.chart);

window.stagecraft = {
  actions: app.data.size,
  ranks: app.data.ranks,
  errors,
  view: app.view,
  drawn: () => app.drawn,
  barAt: (x, y) => app.view.barAt(x, y),
  textOf: (bar) => actionText(app.data, bar),
  selfTest: () => selfTest(app),
};
if (location.hash === "#selftest") {
  let result;
  try {
    result = selfTest(app);
  } catch (error) {
    result = { errors: [String(error && error.stack || error)] };
  }
  document.documentElement.dataset.stagecraft = JSON.stringify(result);
}
