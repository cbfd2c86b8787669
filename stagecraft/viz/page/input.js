// Pointer, wheel and keys.

function listen(app) {
  const { view, chart } = app;
  const pointers = new Map();
  let moved = 0;

  const at = (event) => {
    const box = chart.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  chart.addEventListener("wheel", (event) => {
    if (!takesWheel(app, event)) return;
    event.preventDefault();
    const { x, y } = at(event);
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const dx = event.deltaX * unit, dy = event.deltaY * unit;
    if (event.altKey) view.zoomLanes(Math.exp(-dy * 0.002), y);
    else if (event.shiftKey) view.pan(dx || dy, 0);
    else if (Math.abs(dx) > Math.abs(dy) && !event.ctrlKey) view.pan(dx, 0);
    // A pinch on a touchpad comes as a wheel with Ctrl and small steps.
    else if (x < kGutter && !event.ctrlKey) view.pan(0, dy);
    else view.zoom(Math.exp(-dy * (event.ctrlKey ? 0.01 : 0.0016)), x);
    app.setHover(view.barAt(x, y), x, y);
    app.redraw();
  }, { passive: false });

  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    chart.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    moved = 0;
  });
  chart.addEventListener("pointermove", (event) => {
    const now = at(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      app.setHover(view.barAt(now.x, now.y), now.x, now.y);
      return;
    }
    const others = [...pointers].filter(([id]) => id !== event.pointerId);
    if (others.length > 0) {
      const other = others[0][1];
      const factor = Math.hypot(now.x - other.x, now.y - other.y) / Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
      view.zoom(factor, (now.x + other.x) / 2);
      moved = 100;
    } else {
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (moved > 3) {
        view.pan(before.x - now.x, before.y - now.y);
        chart.classList.add("dragging");
        app.setHover(-1);
      }
    }
    pointers.set(event.pointerId, now);
    app.redraw();
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    chart.classList.remove("dragging");
    if (event.type === "pointerup" && moved <= 3) {
      const { x, y } = at(event);
      app.select(view.barAt(x, y));
    }
  };
  chart.addEventListener("pointerup", release);
  chart.addEventListener("pointercancel", release);
  chart.addEventListener("pointerleave", () => app.setHover(-1));
  chart.addEventListener("dblclick", (event) => {
    view.zoom(2.5, at(event).x);
    app.redraw();
  });

  listenOverview(app);
  listenKeys(app);
  const click = (id, action) => document.getElementById(id).addEventListener("click", () => { action(); app.redraw(); });
  click("in", () => view.zoom(1.6));
  click("out", () => view.zoom(1 / 1.6));
  click("fit", () => view.fit());
  click("taller", () => view.zoomLanes(1.25));
  click("shorter", () => view.zoomLanes(0.8));
  click("theme", () => app.switchTheme());
  click("help", () => app.toggleKeys());
}

// Where the page scrolls, the wheel is for that unless it is meant for the timeline.
function takesWheel(app, event) {
  return !app.embedded || event.ctrlKey || event.shiftKey || event.altKey || document.activeElement === app.chart;
}
const kScrollKeys = ["ArrowUp", "ArrowDown", "Home", "End"];

function listenOverview(app) {
  const { footer, view } = app;
  let grip = null;
  const time = (event) => overviewTime(app, event.clientX - footer.getBoundingClientRect().left);
  footer.addEventListener("pointerdown", (event) => {
    footer.setPointerCapture(event.pointerId);
    const t = time(event);
    if (t < view.t0 || t > view.t1) view.center(t);
    grip = t - (view.t0 + view.t1) / 2;
    app.redraw();
  });
  footer.addEventListener("pointermove", (event) => {
    if (grip === null) return;
    view.center(time(event) - grip);
    app.redraw();
  });
  const release = () => { grip = null; };
  footer.addEventListener("pointerup", release);
  footer.addEventListener("pointercancel", release);
  footer.addEventListener("wheel", (event) => {
    if (!takesWheel(app, event)) return;
    event.preventDefault();
    view.zoom(Math.exp(-event.deltaY * 0.0016));
    app.redraw();
  }, { passive: false });
}

function listenKeys(app) {
  const { view } = app;
  const step = () => view.plotWidth() / 6;
  const actions = {
    "+": () => view.zoom(1.4), "=": () => view.zoom(1.4), "-": () => view.zoom(1 / 1.4),
    "0": () => view.fit(), f: () => view.fit(), Home: () => view.center(0), End: () => view.center(view.end()),
    ArrowLeft: () => view.pan(-step(), 0), ArrowRight: () => view.pan(step(), 0),
    ArrowUp: () => view.pan(0, -view.pitch), ArrowDown: () => view.pan(0, view.pitch),
    "[": () => view.zoomLanes(0.8), "]": () => view.zoomLanes(1.25),
    c: () => app.flipLayer("path"), m: () => app.flipLayer("memory"), t: () => app.flipLayer("transfers"),
    o: () => app.flipLayer("marks"), l: () => app.flipLayer("plan"), s: () => app.flipLayer("slots"), d: () => app.switchTheme(), "?": () => app.toggleKeys(),
    n: () => app.step(1), p: () => app.step(-1), Escape: () => app.select(-1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (app.embedded && kScrollKeys.includes(event.key) && document.activeElement !== app.chart) return;
    const action = actions[event.key];
    if (!action || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    event.preventDefault();
    action();
    app.redraw();
  });
}
