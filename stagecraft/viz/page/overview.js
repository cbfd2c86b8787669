// The strip at the foot: all of time, all ranks together, and which part of it is on the screen.

const kOverviewPad = 9;

function overviewGeometry(app) {
  const width = app.footer.clientWidth, height = app.footer.clientHeight;
  return { width, height, left: kGutter, right: width - kRight, top: kOverviewPad, bottom: height - kOverviewPad };
}

// Shares of all ranks together; made again only when the width changes.
function overviewShares(app, points) {
  const { data } = app;
  if (app.overviewCache && app.overviewCache.points === points) return app.overviewCache.shares;
  const whole = wholeTime(data);
  const step = whole / Math.max(1, points - 1);
  const times = spread(0, whole, points);
  const window = bandWindow(data, step);
  const total = data.types.map(() => new Float64Array(points));
  // Some of the ranks, evenly, say as much as all of them.
  const stride = Math.max(1, Math.floor(data.ranks / 48));
  let count = 0;
  for (let rank = 0; rank < data.ranks; rank += stride, count++) {
    bandShares(data, rank, times, window, 0, whole).forEach((share, k) => {
      for (let i = 0; i < points; i++) total[k][i] += share[i];
    });
  }
  for (const share of total) for (let i = 0; i < points; i++) share[i] /= Math.max(1, count);
  app.overviewCache = { points, shares: total };
  return total;
}

function drawOverview(app) {
  const { data, view, theme } = app;
  const box = overviewGeometry(app);
  const context = prepare(app.overviewCanvas, box.width, box.height);
  const width = Math.max(1, box.right - box.left), height = box.bottom - box.top;
  context.fillStyle = theme.page;
  context.fillRect(box.left, box.top, width, height);
  const points = Math.max(2, Math.floor(width / 2));
  if (data.types.length > 0) {
    const colors = data.types.map((type) => data.palette[1][data.names[type]][0][0]);
    context.globalAlpha = 0.85;
    stackBands(context, overviewShares(app, points), colors, spread(box.left, box.right, points), box.bottom, height);
    context.globalAlpha = 1;
  }
  const xOf = (time) => box.left + (Math.min(Math.max(time, 0), view.end()) / view.end()) * width;
  const x0 = xOf(view.t0), x1 = Math.max(xOf(view.t1), x0 + 3);
  context.globalAlpha = 0.72;
  context.fillStyle = theme.panel;
  context.fillRect(box.left, box.top, x0 - box.left, height);
  context.fillRect(x1, box.top, box.right - x1, height);
  context.globalAlpha = 1;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.beginPath();
  context.roundRect(x0, box.top - 3, x1 - x0, height + 6, 3);
  context.stroke();
  context.fillStyle = theme.faint;
  context.font = `11.5px ${theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("all ranks", kGutter - 14, box.height / 2);
}

function overviewTime(app, x) {
  const box = overviewGeometry(app);
  return ((x - box.left) / Math.max(1, box.right - box.left)) * app.view.end();
}
