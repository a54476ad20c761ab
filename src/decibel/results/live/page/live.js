// Asks for new lines of the run's log, and draws them. All words from the log are set as text, never as markup.
"use strict";

const COSTS = {
  step: "iterations", samples: "samples per node", gradients: "gradients per node",
  hvps: "Hessian-vector products per node", jvps: "Jacobian-vector products per node",
  rounds: "communication rounds", bytes: "bytes sent per node", seconds: "seconds",
};
const AGAINST = ["step", "samples", "rounds", "bytes", "seconds"];
const RAMP = [[43, 108, 163], [111, 179, 184], [240, 192, 90], [217, 80, 46]]; // the colours of .ramp in live.css
const PALETTE = ["#0f7fc0", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#8c6bb1"];
const SECOND = 1000;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);
const run = { name: "", offset: 0 }; // how far we have read
let about, steps, columns, distances, reach, state, stopped; // what we have read
let layout = null, charts = [], shape = "";
forget();

function table() { return Object.assign(Object.create(null), { step: [] }); }

function forget() {
  about = { about: {}, graph: null }; steps = null; columns = table();
  distances = null; reach = null; state = "waits"; stopped = null;
}

// What a line says.

function take(line) {
  if (line.kind === "begin") {
    about = line; steps = line.about.steps ?? null; state = "runs"; stopped = null;
    askForLayout();
  } else if (line.kind === "row") {
    goBackTo(line.step);
    state = "runs"; stopped = null;
    const before = columns.step.length, row = { ...line.row, step: line.step };
    for (const name of Object.keys(row)) columns[name] ??= new Array(before).fill(null);
    for (const name of Object.keys(columns)) columns[name].push(row[name] ?? null);
    if (line.nodes) distances = line.nodes;
    if (line.reach) reach = reach ? [Math.min(reach[0], line.reach[0]), Math.max(reach[1], line.reach[1])] : line.reach;
  } else {
    state = line.message === null ? "ended" : "stopped"; stopped = line.message;
  }
}

// A run that was resumed tells some steps again.
function goBackTo(step) {
  let keep = columns.step.length;
  while (keep && columns.step[keep - 1] >= step) keep--;
  for (const values of Object.values(columns)) values.length = keep;
}

// Words and numbers.

const WORDS = { compiles: "compiling", waits: "waiting", runs: "running", ended: "ended", stopped: "stopped" };

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) { value /= 1000; unit++; }
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}

const short = (value) => Math.abs(value) >= 1e4
  ? new Intl.NumberFormat("en", { notation: "compact" }).format(value) : number(value);
const clock = (seconds) => {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};
const words = (name) => name.replaceAll("_", " ");

function plain(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value)) return value.map(plain).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([k, v]) => `${words(k)} ${plain(v)}`).join(", ");
  return typeof value === "number" ? number(value) : String(value);
}

function pairs(list, entries) {
  list.replaceChildren(...entries.map(([name, value]) => {
    const row = document.createElement("div"), term = document.createElement("dt"), told = document.createElement("dd");
    term.textContent = name; told.textContent = value;
    row.append(term, told);
    return row;
  }));
}

function say(element, text) { if (element.textContent !== text) element.textContent = text; }

// What the page shows.

// Until the steps after the first row are done, most of the time goes into compiling them.
const stage = () => (state === "runs" && columns.step.length <= 1 ? "compiles" : state);

function show() {
  const last = columns.step.length - 1, info = about.about;
  const step = last < 0 ? 0 : columns.step[last];
  const title = [info.task, info.method].filter(Boolean).map(String).join(" by ") || "A run of Decibel";
  say(at("title"), title);
  const graph = about.graph;
  if (graph) say(at("subtitle"), `over ${graph.name || "a graph"} of ${number(graph.nodes)} nodes`);
  document.title = `${WORDS[stage()]} · ${title}`;
  say(at("state"), WORDS[stage()]);
  at("state").className = stage();
  at("sheet").hidden = state === "waits";
  at("progress").hidden = steps === null;
  at("progress").value = steps ? step / steps : 0;
  pairs(at("costs"), [
    ["iterations", steps ? `${number(step)} of ${number(steps)}` : number(step)],
    ...AGAINST.slice(1).filter((name) => name in columns).map((name) => {
      const value = columns[name][last] ?? 0;
      return [name === "seconds" ? "spent computing" : name === "bytes" ? "sent per node" : COSTS[name],
        name === "bytes" ? bytes(value) : name === "seconds" ? clock(value) : short(value)];
    }),
    ...timeLeft(last),
  ]);
  showAbout(info);
  paintNodes();
  showCharts();
}

// By the time of the newest half of the rows: the first ones may have waited for others.
function timeLeft(last) {
  const seconds = columns.seconds;
  if (state !== "runs" || !steps || !seconds || last < 1) return [];
  const from = last >> 1, done = columns.step[last] - columns.step[from], took = seconds[last] - seconds[from];
  if (!(done > 0 && took > 0)) return [];
  return [["time left, about", clock(Math.round((steps - columns.step[last]) * took / done))]];
}

function showAbout({ method, settings, graph, versions, ...rest }) {
  if (rest.batch_size === null) rest.batch_size = "all samples";
  const entries = Object.entries({ method, settings, graph: sameGraph(graph), ...rest, versions });
  pairs(at("about"), entries.filter(([, value]) => value !== undefined).map(([name, value]) => [words(name), plain(value)]));
}

// A graph per level is told once where the levels share it.
function sameGraph(graph) {
  const each = graph && typeof graph === "object" ? [...new Set(Object.values(graph).map(plain))] : [];
  return each.length === 1 ? each[0] : graph;
}

// The graph.

async function askForLayout() {
  try {
    layout = await (await fetch("layout")).json();
  } catch { return; } // the next lines will tell that the server has gone
  drawGraph();
  paintNodes();
}

function drawGraph() {
  const make = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const place = ([x, y]) => [100 * x, -100 * y], places = layout.places.map(place);
  const lines = layout.links.map(([i, j]) =>
    make("line", { x1: places[i][0], y1: places[i][1], x2: places[j][0], y2: places[j][1] }));
  const side = 200 / Math.ceil(Math.sqrt(places.length || 1));
  const radius = Math.max(3, Math.min(9, 60 / Math.sqrt(places.length || 1)));
  const nodes = places.map(([x, y]) => {
    const node = layout.block
      ? make("rect", { x: x - side / 2, y: y - side / 2, width: side, height: side, class: "node unknown" })
      : make("circle", { cx: x, cy: y, r: radius, class: "node unknown" });
    node.append(make("title", {}));
    return node;
  });
  if (layout.block) nodes.forEach((node) => node.style.strokeWidth = side / 12);
  at("graph").replaceChildren(...lines, ...nodes);
}

function paintNodes() {
  if (!layout) return;
  const nodes = at("graph").querySelectorAll(".node"), own = layout.shown;
  nodes.forEach((node, k) => {
    const value = distances?.[own[k]] ?? null;
    node.classList.toggle("unknown", value === null);
    node.style.fill = value === null ? "" : colour(value);
    node.firstChild.textContent = `node ${own[k]}` + (value === null ? "" : `: ${number(value)}`);
  });
  const told = (distances ?? []).map((value, node) => [value, node]).filter(([value]) => value !== null);
  const part = own.length < layout.nodes ? `${number(own.length)} of ${number(layout.nodes)} nodes are shown. ` : "";
  at("scale").hidden = !reach;
  if (reach) { say(at("nearest"), number(reach[0])); say(at("furthest"), number(reach[1])); }
  let text = told.length ? "All nodes agree." : "";
  const [most, node] = told.reduce((a, b) => (b[0] > a[0] ? b : a), [0, 0]);
  if (most > 0) {
    const middle = told.map(([value]) => value).sort((a, b) => a - b)[told.length >> 1];
    text = `The furthest is node ${node}, at ${number(most)}. The median distance is ${number(middle)}.`;
  }
  say(at("reach"), part + text);
  at("graph").setAttribute("aria-label", `${layout.nodes} nodes, coloured by their distance from consensus. ${text}`);
}

// By the logarithm, over all that this run has seen; a node that agrees exactly is as blue as can be.
function colour(value) {
  if (!reach || value <= 0) return `rgb(${RAMP[0].join()})`;
  const span = Math.log(reach[1] / reach[0]);
  const share = span > 0 ? Math.min(1, Math.max(0, Math.log(value / reach[0]) / span)) : 1;
  const place = share * (RAMP.length - 1), low = Math.min(Math.floor(place), RAMP.length - 2), part = place - low;
  return `rgb(${RAMP[low].map((from, k) => Math.round(from + part * (RAMP[low + 1][k] - from))).join()})`;
}

// The curves: one chart per metric, levels x, y and z together.

function groups() {
  const found = new Map();
  for (const name of Object.keys(columns)) {
    if (Object.hasOwn(COSTS, name) || columns[name].every((value) => value === null)) continue;
    const [, family, level] = name.match(/^(.+)_([xyz])$/) ?? [null, name, ""];
    if (!found.has(family)) found.set(family, []);
    found.get(family).push({ name, label: level });
  }
  return found;
}

function spansDecades(names) {
  let low = Infinity, high = -Infinity, negative = false;
  for (const name of names) for (const value of columns[name]) {
    if (value < 0) negative = true;
    if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  return !negative && high > 30 * low;
}

function showCharts() {
  const against = at("against").value || "step", wanted = at("distribution").value, found = groups();
  const axes = AGAINST.filter((name) => name in columns);
  if (axes.join() !== [...at("against").options].map((option) => option.value).join()) {
    at("against").replaceChildren(...axes.map((name) => new Option(COSTS[name], name, false, name === against)));
  }
  const x = columns[against in columns ? against : "step"];
  const kinds = [...found].map(([family, series]) => {
    const names = series.map(({ name }) => name);
    return { family, series, names, log: wanted === "log" || (wanted === "auto" && spansDecades(names)) };
  });
  at("nothing").hidden = kinds.length > 0;
  const now = JSON.stringify([against, ...kinds.map(({ names, log }) => [names, log])]);
  if (now !== shape) {
    shape = now;
    charts.forEach(({ plot }) => plot.destroy());
    charts = [];
    at("charts").replaceChildren();
    charts = kinds.map((kind) => makeChart(kind, against));
  }
  for (const chart of charts) {
    const drawn = chart.names.map((name) => chart.log ? columns[name].map((v) => (v > 0 ? v : null)) : columns[name]);
    chart.plot.setData([x, ...drawn], !chart.closer);
    if (chart.closer) chart.plot.redraw(false);
    tell(chart, chart.plot.cursor.idx);
  }
}

function makeChart({ family, series, names, log }, against) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  const heading = document.createElement("strong"), place = document.createElement("div");
  heading.textContent = words(family);
  caption.append(heading);
  figure.className = "chart"; figure.append(caption, place);
  place.setAttribute("role", "img");
  at("charts").append(figure);
  const told = series.map(({ label }, k) => {
    const item = document.createElement("span"), swatch = document.createElement("i"), value = document.createElement("b");
    swatch.className = "swatch"; swatch.style.background = PALETTE[k % PALETTE.length];
    item.append(swatch, label ? `${label} ` : "", value);
    caption.append(item);
    return value;
  });
  const chart = { names, log, told, place, closer: false }; // closer: the reader chose what part to see
  const css = getComputedStyle(document.documentElement), ink = css.getPropertyValue("--soft"), line = css.getPropertyValue("--line");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
  const decades = (_, ticks) => ticks.map((v) => (Number.isInteger(Math.log10(v)) ? v : null));
  const label = against === "bytes" ? bytes : short;
  chart.plot = new uPlot({
    width: place.clientWidth, height: 190, legend: { show: false }, padding: [8, 22, 0, 0],
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [
      { ...axis, size: 32, space: 56, values: (_, ticks) => ticks.map((v) => (v === null ? "" : label(v))) },
      { ...axis, ...(log && { grid: { ...axis.grid, filter: decades }, ticks: { ...axis.ticks, filter: decades } }),
        size: 58, space: 26, values: (_, ticks) => ticks.map((v) => (v === null ? "" : short(v))) },
    ],
    series: [{}, ...names.map((name, k) => ({ label: name, stroke: PALETTE[k % PALETTE.length], width: 2, spanGaps: true }))],
    cursor: { sync: { key: "run" }, points: { size: 7 }, y: false },
    hooks: {
      setCursor: [(plot) => tell(chart, plot.cursor.idx)],
      setSelect: [(plot) => { chart.closer ||= plot.select.width > 0; }],
    },
  }, [[], ...names.map(() => [])], place);
  place.addEventListener("dblclick", () => charts.forEach((each) => { each.closer = false; }));
  return chart;
}

// The values under the pointer, or the newest ones.
function tell(chart, index) {
  const row = index ?? columns.step.length - 1;
  const values = chart.names.map((name) => number(columns[name][row]));
  values.forEach((value, k) => say(chart.told[k], value));
  const sentence = chart.names.map((name, k) => `${words(name)} ${values[k]}`).join(", ");
  chart.place.setAttribute("aria-label", `${sentence} after ${number(columns.step[row])} iterations`);
}

new ResizeObserver(() => charts.forEach(({ plot, place }) => {
  if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: 190 });
})).observe(at("charts"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { shape = ""; showCharts(); });
for (const id of ["against", "distribution"]) at(id).addEventListener("change", showCharts);

// Asking.

function notice(text) { at("notice").hidden = !text; say(at("notice"), text); }

async function ask() {
  let answer;
  try {
    const reply = await fetch(`events?from=${run.offset}&run=${run.name}`);
    if (!reply.ok) throw new Error(reply.statusText);
    answer = await reply.json();
  } catch {
    notice(state === "ended" || state === "stopped" ? "The run’s process has gone; this is how it ended."
      : "The server does not answer; this is the last known state of the run.");
    return setTimeout(ask, 5 * SECOND);
  }
  if (answer.restarted) forget();
  run.name = answer.run; run.offset = answer.offset;
  answer.lines.forEach(take);
  if (answer.lines.length || answer.restarted) show();
  const quiet = state === "runs" && answer.age > 60 ? `Nothing new for ${clock(Math.round(answer.age))}.` : "";
  notice(stopped ? `Stopped: ${stopped}.` : quiet);
  const over = state === "ended" || state === "stopped";
  setTimeout(ask, answer.more ? 0 : document.hidden || over ? 5 * SECOND : SECOND);
}
ask();
