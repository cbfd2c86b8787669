// What lies over the lanes: the bar under the pointer with what it needs and who needs it, when it was
// planned, transfers, the critical path. Drawn on a canvas of its own, so that moving the pointer costs little.

const kMostTransfers = 1200;

function middleOf(box) { return box.y + box.height / 2; }

// From the end of one bar to the start of another.
function linkPath(view, from, to) {
  const a = view.boxOf(from), b = view.boxOf(to);
  const x0 = view.xOf(view.data.runEnd[from]), y0 = middleOf(a), x1 = view.xOf(view.data.runStart[to]), y1 = middleOf(b);
  const bend = Math.min(60, Math.abs(x1 - x0) / 2);
  const path = new Path2D();
  path.moveTo(x0, y0);
  if (Math.abs(y0 - y1) < 1) {
    path.bezierCurveTo(x0 + bend, y0 - view.barHeight() * 0.7, x1 - bend, y1 - view.barHeight() * 0.7, x1, y1);
  } else {
    path.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  }
  return { path, x: x1, y: y1 };
}

function strokeLink(context, theme, link, color, dash) {
  context.strokeStyle = theme.page;
  context.globalAlpha = 0.8;
  context.lineWidth = 4;
  context.stroke(link.path);
  context.globalAlpha = 1;
  context.setLineDash(dash);
  context.strokeStyle = color;
  context.lineWidth = 1.8;
  context.stroke(link.path);
  context.setLineDash([]);
  context.beginPath();
  context.arc(link.x, link.y, 3, 0, 2 * Math.PI);
  context.fillStyle = color;
  context.fill();
}

function outline(context, box, color, width) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(box.x - 0.5, box.y - 0.5, Math.max(box.width, 2), box.height + 1, 3);
  context.stroke();
}

function drawOverlay(app) {
  const { data, view, theme } = app;
  const context = prepare(app.overlayCanvas, view.width, view.height);
  context.save();
  context.beginPath();
  context.rect(kGutter, kAxis, view.width - kGutter, view.height - kAxis);
  context.clip();
  app.transfersDrawn = app.layers.transfers ? drawTransfers(app, context) : 0;
  if (app.layers.path) drawPath(app, context);
  const bar = app.hover >= 0 ? app.hover : app.selected;
  if (bar >= 0) {
    const before = needs(data, bar), after = neededBy(data, bar);
    for (const other of after) strokeLink(context, theme, linkPath(view, bar, other), theme.accent, [3, 3]);
    for (const other of before) strokeLink(context, theme, linkPath(view, other, bar), theme.ink, []);
    for (const other of before) outline(context, view.boxOf(other), theme.ink, 1.5);
    for (const other of after) outline(context, view.boxOf(other), theme.accent, 1.5);
    outline(context, view.boxOf(bar), theme.ink, 2.2);
    const planned = view.planHeight() > 0 ? sameBar(data, data.plan, bar) : -1;
    if (planned >= 0) outline(context, view.planBoxOf(planned), theme.ink, 1.5);
  }
  context.restore();
}

function drawTransfers(app, context) {
  const { data, view, theme } = app;
  const [firstRank, lastRank] = view.visibleRanks();
  const links = [];
  for (let rank = firstRank; rank <= lastRank; rank++) {
    const begin = firstAbove(data.barEnd, data.first[rank], data.first[rank + 1], view.t0);
    for (let bar = begin; bar < data.first[rank + 1] && data.barStart[bar] < view.lastTime(); bar++) {
      if (data.barType[bar] === kWeight) continue;
      for (const other of needs(data, bar)) {
        if (data.barRank[other] !== rank) links.push(other, bar);
      }
      if (links.length > 2 * kMostTransfers) return 0;
    }
  }
  context.strokeStyle = theme.ink;
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  for (let i = 0; i < links.length; i += 2) {
    const link = linkPath(view, links[i], links[i + 1]);
    context.stroke(link.path);
    context.fillStyle = theme.ink;
    context.beginPath();
    context.arc(link.x, link.y, 1.8, 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
  return links.length / 2;
}

function drawPath(app, context) {
  const { data, view, theme } = app;
  if (data.path.length === 0) return;
  context.lineJoin = "round";
  context.beginPath();
  let lastX = -1e9, lastY = -1e9;
  for (const bar of data.path) {
    // Along the foot of the bars, so that their numbers can be read.
    const box = view.boxOf(bar);
    const y = box.height > 14 ? box.y + box.height - 4 : middleOf(box);
    const x0 = view.xOf(data.runStart[bar]), x1 = view.xOf(data.runEnd[bar]);
    // Steps that fall on one pixel are one point.
    if (Math.abs(x0 - lastX) > 0.5 || y !== lastY) context.lineTo(x0, y);
    context.lineTo(x1, y);
    lastX = x1;
    lastY = y;
  }
  context.strokeStyle = theme.page;
  context.globalAlpha = 0.8;
  context.lineWidth = 4.5;
  context.stroke();
  context.globalAlpha = 1;
  context.strokeStyle = theme.path;
  context.lineWidth = 2;
  context.stroke();
}
