// Numbers for people. In pages of recordings times are microseconds and memory is bytes; in others they
// are bare numbers.

let realUnits = false;

const kTimeUnits = [[1e6, "s"], [1e3, "ms"], [1, "µs"]];
const kByteUnits = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

// Thousands separated. Making a formatter takes longer than drawing a lane.
const formatters = [];
function fixedText(value, digits) {
  formatters[digits] ??= new Intl.NumberFormat("en-US", { maximumFractionDigits: digits });
  return formatters[digits].format(value);
}
function numberText(value) {
  return fixedText(value, Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 10 ? 2 : 4);
}

// The largest unit that a value has at least one of, [size, name].
function unitFor(units, value) {
  return units.find(([size]) => Math.abs(value) >= size) || units[units.length - 1];
}
// Four digits that say something.
function scaledText(units, value) {
  const [size, name] = unitFor(units, value);
  const scaled = value / size;
  return `${fixedText(scaled, Math.abs(scaled) >= 1000 ? 0 : Math.abs(scaled) >= 100 ? 1 : Math.abs(scaled) >= 10 ? 2 : 3)} ${name}`;
}
function timeText(value) { return realUnits ? scaledText(kTimeUnits, value) : numberText(value); }
function memoryText(value) { return realUnits ? scaledText(kByteUnits, value) : numberText(value); }

// What an axis or a column divides its times by, and its name, for times up to `most`.
function timeUnit(most) { return realUnits ? unitFor(kTimeUnits, most) : [1, "time"]; }
