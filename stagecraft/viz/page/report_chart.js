// Charts and tables of a report, as inline SVG and HTML, and the hint that says what is under the pointer.

const kSvg = "http://www.w3.org/2000/svg";

function svgElement(tag, attributes, text) {
  const element = document.createElementNS(kSvg, tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  return element;
}

// `rows`: [name, value] each.
function showHint(event, title, rows) {
  const hint = document.getElementById("hint");
  const table = make("table");
  for (const [name, value] of rows) {
    const row = make("tr");
    row.append(make("th", name), make("td", value));
    table.append(row);
  }
  hint.replaceChildren(make("b", title), table);
  hint.hidden = false;
  const width = hint.offsetWidth, height = hint.offsetHeight;
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - 16 - width : event.clientX + 16;
  const top = Math.min(event.clientY + 14, innerHeight - height - 6);
  hint.style.transform = `translate(${Math.round(Math.max(4, left))}px, ${Math.round(Math.max(4, top))}px)`;
}
function hideHint() { document.getElementById("hint").hidden = true; }

function addSection(id, title, ...notes) {
  const section = make("section");
  section.id = id;
  section.append(make("h2", title));
  for (const note of notes) if (note) section.append(make("p", note, "note"));
  document.getElementById("sections").append(section);
  return section;
}

// Columns: { title, unit, text: left-aligned, cell: row => text or element, wrap }; total: a last row.
function addTable(section, columns, rows, rowClass = () => "") {
  const table = make("table");
  const head = make("tr");
  for (const column of columns) {
    const cell = make("th", column.title, column.text ? "text" : "");
    if (column.unit) cell.append(make("small", column.unit));
    head.append(cell);
  }
  const top = make("thead"), body = make("tbody");
  top.append(head);
  for (const row of rows) {
    const line = make("tr", undefined, rowClass(row));
    for (const column of columns) {
      const content = column.cell(row);
      const cell = make("td", undefined, [column.text ? "text" : "", column.wrap ? "wrap" : "", column.className || ""].join(" ").trim());
      // Where the page is too narrow for the table, each cell shows its title itself (report.css).
      if (column.title) cell.dataset.title = column.unit ? `${column.title}, ${column.unit}` : column.title;
      if (content === null || content === undefined) {
        cell.textContent = "–";
        cell.classList.add("none");
      } else {
        cell.append(content);
      }
      line.append(cell);
    }
    body.append(line);
  }
  table.append(top, body);
  const box = make("div", undefined, "scroll");
  box.append(table);
  section.append(box);
  return table;
}

// Texts of a column with one unit and as many digits everywhere, so that they can be compared down the page.
function columnText(units, values) {
  const most = Math.max(0, ...values.filter(Number.isFinite).map(Math.abs));
  const [size, name] = unitFor(units, most);
  const digits = size === 1 && units === kByteUnits ? 0 : most / size >= 1000 ? 0 : most / size >= 100 ? 1 : 2;
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return { unit: name, text: (value) => (Number.isFinite(value) ? format.format(value / size) : null) };
}
function percentText(share, digits = 1) { return `${(share * 100).toFixed(digits)} %`; }
function signedPercent(share) { return `${share < 0 ? "−" : "+"}${percentText(Math.abs(share))}`; }

// Colours with names; `line`: "line" or "line dashed" for curves.
function addKey(section, entries) {
  const key = make("div", undefined, "key");
  for (const { name, color, line } of entries) {
    const entry = make("span");
    const swatch = make("i", undefined, line || "");
    swatch.style[line ? "borderColor" : "background"] = color;
    entry.append(swatch, name);
    key.append(entry);
  }
  section.append(key);
}

const kChart = { left: 62, right: 10, top: 8, bottom: 24 };

// A frame with axes: x and y are { from, to, ticks: [value], text }. Returns what maps values to places.
function makeChart(width, height, x, y, label) {
  const svg = svgElement("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const { left, right, top, bottom } = kChart;
  const xOf = (value) => left + ((value - x.from) / (x.to - x.from || 1)) * (width - left - right);
  const yOf = (value) => height - bottom - ((value - y.from) / (y.to - y.from || 1)) * (height - top - bottom);
  for (const tick of y.ticks) {
    svg.append(svgElement("line", { class: "tick", x1: left, x2: width - right, y1: yOf(tick), y2: yOf(tick) }));
    svg.append(svgElement("text", { x: left - 8, y: yOf(tick) + 4, "text-anchor": "end" }, y.text(tick)));
  }
  svg.append(svgElement("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  for (const tick of x.ticks) {
    const at = xOf(tick);
    svg.append(svgElement("text", { x: at, y: height - bottom + 16, "text-anchor": at > width - 40 ? "end" : "middle" }, x.text(tick)));
  }
  const cursor = svgElement("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  // Calls `at` with the value under the pointer; it says where the cursor goes.
  const listenTo = (at) => {
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * width;
      const value = x.from + ((place - left) / (width - left - right)) * (x.to - x.from);
      const found = at(Math.min(Math.max(value, x.from), x.to), event);
      cursor.setAttribute("visibility", found === null ? "hidden" : "visible");
      if (found === null) return hideHint();
      cursor.setAttribute("x1", xOf(found));
      cursor.setAttribute("x2", xOf(found));
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      hideHint();
    });
    svg.append(cursor);
  };
  return { svg, xOf, yOf, listenTo, floor: height - bottom };
}

function ticksBetween(from, to, step) {
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-9) + 0; i * step <= to * (1 + 1e-9); i++) ticks.push(i * step);
  return ticks;
}
