// With #reporttest a report tries itself out, its timeline included, and says what came of it in
// <html data-stagecraft>.

function testReport(app, report) {
  const result = selfTest(app);
  const check = (holds, what) => { if (!holds) result.problems.push(what); };
  const hint = document.getElementById("hint");
  // The pointer over a place of an element; returns what the hint says, empty for none.
  const hover = (element, share = 0.5) => {
    const box = element.getBoundingClientRect();
    element.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + box.width * share, clientY: box.top + box.height / 2 }));
    return hint.hidden ? "" : hint.textContent;
  };

  const pieces = [...document.querySelectorAll("#time .stack i")];
  for (const piece of pieces) {
    const rank = report.ranks[piece.closest("tr").rowIndex - 1];
    check(hover(piece).includes(timeText(rank[piece.dataset.cause])), `rank ${rank.rank}: no time of ${piece.dataset.cause}`);
  }
  const widths = [...document.querySelectorAll("#time .stack")].map((stack) =>
    [...stack.children].reduce((sum, piece) => sum + parseFloat(piece.style.width), 0));

  const charts = [...document.querySelectorAll("#memory svg.chart")];
  const drawn = report.ranks.filter((rank) => rank.memory.recorded.length + rank.memory.predicted.length > 0);
  check(charts.length === drawn.length, "not a memory chart for each rank");
  charts.forEach((chart, i) => {
    const { recorded } = drawn[i].memory;
    const end = Math.max(report.step.makespan, report.plan?.makespan || 0);
    const time = end * ((0.5 * 560 - kChart.left) / (560 - kChart.left - kChart.right));
    const text = hover(chart);
    const held = recorded.filter((sample) => sample[0] <= time).at(-1);
    check(!held || text.includes(`recorded${memoryText(held[1])}`), `memory of rank ${drawn[i].rank}: "${text}"`);
  });
  const loss = document.querySelector("#loss svg.chart");
  const lossHint = loss ? hover(loss, 1) : "";
  const timed = [...document.querySelectorAll("#stages [data-time]")];
  for (const cell of timed) check(hover(cell).includes("median"), "no hint at a time of a stage");
  document.querySelector("#timeline").dispatchEvent(new PointerEvent("pointerleave"));
  hideHint();

  // The wheel scrolls the page, unless Ctrl says that it is for the timeline or that has the focus.
  const wheel = (ctrlKey) => {
    const event = new WheelEvent("wheel", { deltaY: -120, clientX: 400, clientY: 300, ctrlKey, cancelable: true });
    app.chart.dispatchEvent(event);
    return event.defaultPrevented;
  };
  app.view.fit();
  const whole = app.view.t1 - app.view.t0;
  document.activeElement?.blur();
  check(!wheel(false) && app.view.t1 - app.view.t0 === whole, "the wheel alone zooms");
  check(wheel(true) && app.view.t1 - app.view.t0 < whole, "the wheel with Ctrl does not zoom");
  app.view.fit();
  document.getElementById("in").click();
  check(app.view.t1 - app.view.t0 < whole, "the button does not zoom");
  app.view.fit();
  app.paint();

  // Nothing is cut off: neither the page nor a table in it is wider than there is room.
  check(document.documentElement.scrollWidth <= window.innerWidth, `the page is ${document.documentElement.scrollWidth} wide, the window ${window.innerWidth}`);
  for (const box of document.querySelectorAll(".scroll")) {
    check(box.scrollWidth <= box.clientWidth, `${box.closest("section").id}: a table is ${box.scrollWidth} wide, the room ${box.clientWidth}`);
  }

  const overlapping = [...document.querySelectorAll("section")].filter((section, i, all) =>
    i > 0 && section.getBoundingClientRect().top < all[i - 1].getBoundingClientRect().bottom);
  check(overlapping.length === 0, "sections overlap");
  check(document.documentElement.scrollWidth <= innerWidth, `the page is ${document.documentElement.scrollWidth} wide, the window ${innerWidth}`);
  return { ...result, widths, lossHint, pieces: pieces.length, charts: charts.length, timed: timed.length,
           sections: [...document.querySelectorAll("section")].map((section) => section.id),
           failure: document.getElementById("failure").textContent, command: document.querySelector("pre")?.textContent || "",
           rows: document.querySelectorAll("#comparison tbody tr").length,
           loaded: performance.getEntriesByType("resource").map((entry) => entry.name) };
}
