// The parts of the page that are not canvas: heading, figures, legend, layers, tooltip, keys. Texts
// that come from outside are only ever set as text.

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function plural(count, word, words = `${word}s`) {
  return `${numberText(count)} ${count === 1 ? word : words}`;
}

function fillHeader(data) {
  document.getElementById("title").textContent = data.title || "Pipeline schedule";
  const shape = [plural(data.ranks, "rank"), plural(data.stages, "stage"), plural(data.microbatches, "microbatch", "microbatches"),
                 plural(data.size, "action")];
  document.getElementById("subtitle").textContent = data.subtitle || shape.join(" · ");
  const figures = document.getElementById("figures");
  const add = (name, value, unit, hint) => {
    const entry = make("div");
    entry.title = hint;
    const number = make("dd", value);
    if (unit) number.append(make("small", unit));
    entry.append(make("dt", name), number);
    figures.append(entry);
  };
  const planned = (text) => (data.plan ? `plan ${text}` : "");
  add("makespan", timeText(data.makespan), planned(timeText(data.plan?.makespan)), "From the start to the end of the last action");
  add("span", timeText(data.span), "", "Of the rank that takes longest, from its own first start to its last end");
  add("bubble", (data.bubble * 100).toFixed(1), `% ${planned(`${(data.plan?.bubble * 100).toFixed(1)} %`)}`.trim(), "Share of all ranks' time without compute");
  add("peak memory", memoryText(data.peak), "", "The most that any rank holds");
  add("exposed transfer", timeText(data.exposed), "", "Time in which a rank only waited for a transfer");
  add("transfers", numberText(data.transfers), "", "Values and gradients that went to another rank");
}

function toggle(label, pressed, onChange, swatch, hint) {
  const button = make("button");
  button.type = "button";
  if (hint) button.title = hint;
  if (swatch) button.append(swatch);
  button.append(label);
  button.setAttribute("aria-pressed", pressed);
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", now);
    onChange(now);
  });
  return button;
}

function swatchOf(colors, line) {
  const swatch = make("span", undefined, line ? "swatch line" : "swatch");
  for (const color of colors) {
    const piece = make("i");
    piece.style.background = color;
    swatch.append(piece);
  }
  return swatch;
}

function fillTools(app) {
  const { data } = app;
  const legend = document.getElementById("legend");
  for (const type of (data.plan || data).types) {
    const colors = data.palette[data.mostChunks][data.names[type]].map((pair) => pair[0]);
    const few = colors.length <= 4 ? colors : [0, 1, 2, 3].map((i) => colors[Math.round((i * (colors.length - 1)) / 3)]);
    const hint = colors.length > 1 ? "Dark to light: the stages of a rank" : undefined;
    legend.append(toggle(kLongNames[type], true, (on) => {
      app.shown[type] = on;
      app.redraw();
    }, swatchOf(few), hint));
  }
  const layers = document.getElementById("layers");
  app.layerButtons = {};
  const layer = (name, label, color, hint) => {
    const button = toggle(label, app.layers[name], (on) => app.setLayer(name, on), color && swatchOf([color], true), hint);
    app.layerButtons[name] = button;
    layers.append(button);
  };
  if (data.memoryTime.length > 0) layer("memory", "Memory", "var(--memory)", "Memory of each rank under its lane ( m )");
  if (data.barSlot) layer("slots", "Slots", "var(--accent)", "In which buffer each activation is, instead of memory ( s )");
  if (data.plan) layer("plan", "Plan", "var(--faint)", "What was planned, under each lane ( l )");
  if (data.path.length > 0) layer("path", "Critical path", "var(--path)", "What decides the makespan ( c )");
  layer("transfers", "Transfers", "var(--soft)", "What goes to another rank, where there is room ( t )");
  if (data.markStart.length > 0) layer("marks", "Other actions", "var(--ink)", "Sends, receives, waits, unshard, ... ( o )");
}

function fillKeys(data) {
  const keys = [["wheel", "zoom time"], ["Shift wheel", "move through time"], ["Alt wheel", "height of lanes"], ["drag", "move"],
                ["click", "keep an action marked"], ["+ −", "zoom"], ["← → ↑ ↓", "move"], ["[ ]", "height of lanes"],
                ["n p", "next, previous action of the rank"], ["0", "show all"], ["c m t", "critical path, memory, transfers"],
                ["d", "light or dark"], ["Esc", "unmark"]];
  if (data.plan) keys.splice(-2, 0, ["l", "plan"]);
  if (data.barSlot) keys.splice(-2, 0, ["s", "slots of activations"]);
  const table = make("table");
  for (const [key, effect] of keys) {
    const row = make("tr");
    const cell = make("td");
    for (const word of key.split(" ")) cell.append(make("kbd", word), " ");
    row.append(cell, make("td", effect));
    table.append(row);
  }
  document.getElementById("keys").replaceChildren(table);
}

// One line for each of the first few bars; the one that ended last is what was waited for.
function barList(data, bars, latest) {
  const cell = make("td");
  for (const bar of bars.slice(0, 5)) {
    const line = make("div");
    line.append(make("code", actionText(data, bar), bar === latest ? "late" : ""));
    line.append(make("span", `  rank ${data.barRank[bar]}, ${timeText(data.runStart[bar])} to ${timeText(data.runEnd[bar])}`));
    cell.append(line);
  }
  if (bars.length > 5) cell.append(make("div", `and ${bars.length - 5} more`));
  return cell;
}

function fillTip(app, bar) {
  const { data, tip } = app;
  const rank = data.barRank[bar];
  const heading = make("h2");
  heading.append(swatchOf([data.palette[data.laneChunks[rank]][data.names[data.barType[bar]]][data.barChunk[bar]][0]]),
                 kLongNames[data.barType[bar]], make("code", actionText(data, bar)));
  const table = make("table");
  const row = (name, content) => {
    const line = make("tr");
    line.append(make("th", name), content instanceof Node ? content : make("td", content));
    table.append(line);
  };
  row("stage", `${data.barStage[bar]} on rank ${rank}`);
  row("microbatch", String(data.barMicrobatch[bar]));
  row("time", `${timeText(data.runStart[bar])} to ${timeText(data.runEnd[bar])}, takes ${timeText(data.runLength[bar])}`);
  if (data.plan) addPlan(data, bar, row);
  const previous = previousEnd(data, bar);
  if (data.barStart[bar] - previous > 1e-9 * wholeTime(data)) row("idle before", timeText(data.barStart[bar] - previous));
  if (partsOf(data, bar) > 1) row("overlap", overlapText(data, bar));
  const before = needs(data, bar), after = neededBy(data, bar);
  const latest = before.reduce((best, other) => (best < 0 || data.runEnd[other] > data.runEnd[best] ? other : best), -1);
  if (before.length > 0) row("needs", barList(data, before, latest));
  if (after.length > 0) row("needed by", barList(data, after, -1));
  if (data.onPath[bar]) row("", "on the critical path");
  const atStart = marksAt(data, rank, data.barStart[bar]), atEnd = marksAt(data, rank, data.barEnd[bar]);
  if (atStart) row("at its start", atStart);
  if (atEnd) row("at its end", atEnd);
  tip.replaceChildren(heading, table);
}

// When the action was planned, and how far off it was.
function addPlan(data, bar, row) {
  const { plan } = data;
  const planned = sameBar(data, plan, bar);
  if (planned < 0) return;
  row("planned", `${timeText(plan.runStart[planned])} to ${timeText(plan.runEnd[planned])}, takes ${timeText(plan.runLength[planned])}`);
  const slack = 1e-9 * wholeTime(data);
  const off = (difference, more, less) => `${timeText(Math.abs(difference))} ${difference > 0 ? more : less}`;
  const start = data.runStart[bar] - plan.runStart[planned], length = data.runLength[bar] - plan.runLength[planned];
  const texts = [];
  if (Math.abs(start) > slack) texts.push(off(start, "later", "earlier"));
  if (Math.abs(length) > slack) texts.push(off(length, "longer", "shorter"));
  row("", texts.length > 0 ? texts.join(", ") : "as planned");
}

// "7F3 and 0B1 from 12 to 15".
function overlapText(data, bar) {
  const first = bar - partOf(data, bar);
  const parts = Array.from({ length: partsOf(data, bar) }, (_, i) => actionText(data, first + i));
  return `${parts.join(" and ")}, ${timeText(data.barStart[bar])} to ${timeText(data.barEnd[bar])}`;
}

// The first few of the other actions that a rank does at a time, empty for none.
function marksAt(data, rank, time) {
  const slack = 1e-9 * wholeTime(data);
  const texts = [];
  for (let mark = firstAbove(data.markStart, data.markFirst[rank], data.markFirst[rank + 1], time - slack);
       mark < data.markFirst[rank + 1] && data.markStart[mark] <= time + slack; mark++) {
    if (texts.length === 6) return `${texts.join(", ")}, ...`;
    texts.push(markText(data, mark));
  }
  return texts.join(", ");
}

// When the rank was done with what it did before this bar.
function previousEnd(data, bar) {
  const first = data.first[data.barRank[bar]];
  for (let i = bar - 1; i >= first; i--) if (data.barStart[i] < data.barStart[bar]) return data.barEnd[i];
  return 0;
}

function placeTip(app, x, y) {
  const { tip, view } = app;
  tip.hidden = false;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  const left = x + 18 + width > view.width ? Math.max(4, x - 18 - width) : x + 18;
  const top = Math.max(4, Math.min(y + 14, view.height - height - 6));
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

function showRange(app) {
  const { view } = app;
  const whole = view.t0 <= 0 && view.t1 >= view.end();
  document.getElementById("range").textContent =
    whole ? "" : `${timeText(Math.max(0, view.t0))} to ${timeText(Math.min(view.end(), view.t1))}`;
}
