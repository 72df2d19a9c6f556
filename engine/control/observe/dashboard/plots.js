/*
 * Plots of /api/history: SVG paths, scales and legends around them; a line where members joined or
 * died; and the values of the point under the pointer.
 */

const PLOT_WIDTH = 720, PLOT_HEIGHT = 100;
const EVENT_NEAR_PX = 5;
const PLOT_SPANS_MIN = [5, 15, 30, 60]; /* the shortest that holds all points is shown */

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name of Object.keys(attributes)) node.setAttribute(name, attributes[name]);
  return node;
}

function element(tag, className, parent) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (parent) parent.append(node);
  return node;
}

/* A round number of at least `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find(n => n * power >= value * 0.9999) * power;
}

/* 10.0 becomes 10, and 2.50 becomes 2.5: marks do not change from second to second. */
function withoutZeros(text) {
  return text.replace(/\.0+(?!\d)|(\.\d*?)0+(?!\d)/, "$1");
}

/* Scales: top, middle and bottom of the field, and where a value lies, 0 (bottom) to 1 (top). */
function linearScale(values, least) {
  const top = roundUp(Math.max(least, ...values));
  return {marks: [top, top / 2, 0], at: value => value / top};
}

/* The middle is a power of ten too. */
function powerScale(values) {
  const low = Math.floor(Math.log10(Math.min(1e9, ...values)));
  const first = values.length ? low : -6;
  const need = Math.ceil(Math.log10(Math.max(1e-6, ...values)) - 1e-9) - first;
  const half = Math.max(1, Math.ceil(need / 2));
  return {marks: [10 ** (first + 2 * half), 10 ** (first + half), 10 ** first],
    at: value => (Math.log10(value) - first) / (2 * half)};
}

function shareScale() {
  return {marks: [1, 0.5, 0], at: value => value};
}

/*
 * `series`: [{name, of(point) -> value or null}], at most three; `scale(values)`; `words(value)`.
 */
class Plot {
  constructor(id, options) {
    this.options = options;
    this.points = [];
    this.root = document.getElementById(id);
    const field = element("div", "field", this.root);
    this.svg = svg("svg", {viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`,
      preserveAspectRatio: "none", role: "img"});
    field.append(this.svg);
    for (const y of [0.5, PLOT_HEIGHT / 2, PLOT_HEIGHT - 0.5])
      this.svg.append(svg("path", {class: "grid", d: `M0 ${y}H${PLOT_WIDTH}`}));
    const scale = element("div", "scale", field), time = element("div", "time", field);
    this.marks = [0, 1, 2].map(() => element("span", "", scale));
    this.times = [0, 1, 2].map(() => element("span", "", time));
    const legend = element("ul", "legend", this.root);
    const strokes = ["a", "b", "c"];
    this.lines = options.series.map((one, i) => {
      const path = svg("path", {class: strokes[i]}), item = element("li", "", legend);
      const sample = svg("svg", {viewBox: "0 0 24 8", "aria-hidden": "true"});
      sample.append(svg("path", {class: strokes[i], d: "M0 4H24"}));
      item.append(sample, one.name);
      this.svg.append(path);
      return {path, value: element("b", "", item)};
    });
    this.events = ["joined", "died"].map(name => {
      const path = svg("path", {class: "event " + name});
      this.svg.append(path);
      return {name: "members_" + name, path};
    });
    this.cursor = svg("path", {class: "cursor"});
    this.svg.append(this.cursor);
    this.tip = element("p", "tip", field);
    this.tip.hidden = true;
    this.svg.addEventListener("pointermove", event => this.point(event));
    this.svg.addEventListener("pointerdown", event => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.chosen = null; this.legend(); });
    this.show([]);
  }

  x(point) {
    return PLOT_WIDTH * (1 - (this.end - point.unix_ms) / this.span);
  }

  show(points) {
    const values = points.flatMap(p =>
      this.options.series.map(one => one.of(p)).filter(value => value !== null));
    const scale = this.options.scale(values);
    this.points = points;
    this.end = points.length ? points[points.length - 1].unix_ms : 0;
    const length = points.length ? this.end - points[0].unix_ms : 0;
    const minutes = PLOT_SPANS_MIN.find(m => m * 60000 >= length) || PLOT_SPANS_MIN[3];
    this.span = minutes * 60000;
    this.marks.forEach((mark, i) =>
      setText(mark, withoutZeros(this.options.words(scale.marks[i]))));
    this.options.series.forEach((one, i) =>
      this.lines[i].path.setAttribute("d", this.path(one, scale)));
    for (const event of this.events)
      event.path.setAttribute("d", points.filter(p => p[event.name] > 0 && this.x(p) >= 0).map(p =>
        `M${this.x(p).toFixed(1)} 0V${PLOT_HEIGHT}`).join(""));
    this.legend();
    this.svg.setAttribute("aria-label", this.summary(values, minutes));
  }

  /* Points without a value leave a gap. */
  path(series, scale) {
    let d = "", pen = false;
    for (const point of this.points) {
      const value = series.of(point), x = this.x(point);
      if (value === null || x < 0) {
        pen = false;
        continue;
      }
      const y = PLOT_HEIGHT * (1 - Math.min(1, Math.max(0, scale.at(value))));
      d += (pen ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1);
      if (!pen) d += "h.1"; /* a lone point is seen too */
      pen = true;
    }
    return d;
  }

  summary(values, minutes) {
    if (!values.length) return this.options.name + ": nothing to plot yet";
    const now = this.options.series.map((one, i) =>
      one.name + " " + this.lines[i].value.textContent).join(", ");
    return this.options.name + " of the last " + minutes + " minutes; at the end: " + now +
      "; highest: " + this.options.words(Math.max(...values));
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * PLOT_WIDTH;
    let best = null;
    for (const point of this.points)
      if (!best || Math.abs(this.x(point) - x) < Math.abs(this.x(best) - x)) best = point;
    const near = PLOT_WIDTH * EVENT_NEAR_PX / box.width; /* a line is easier to meet */
    const meant = this.points.find(point => wordsOfEvent(point).length &&
      Math.abs(this.x(point) - x) < near);
    this.chosen = meant || best;
    this.legend();
  }

  /* Values of the point under the pointer, else of the newest. */
  legend() {
    const point = this.chosen || this.points[this.points.length - 1];
    this.options.series.forEach((one, i) => {
      const value = point ? one.of(point) : null;
      setText(this.lines[i].value, value === null ? "–" : this.options.words(value));
    });
    this.cursor.setAttribute("d", this.chosen ?
      `M${this.x(this.chosen).toFixed(1)} 0V${PLOT_HEIGHT}` : "");
    [this.end - this.span, this.end - this.span / 2].forEach((ms, i) =>
      setText(this.times[i], this.end ? wordsOfClock(ms).slice(0, 5) : ""));
    setText(this.times[2], this.end ? wordsOfClock(this.end) : "");
    this.tell(this.chosen);
  }

  /* Time, values and events of a point, beside it; null: nothing. */
  tell(point) {
    this.tip.hidden = !point;
    if (!point) return;
    const values = this.options.series.map((one, i) =>
      `${one.name} ${this.lines[i].value.textContent}`);
    setText(this.tip, [wordsOfClock(point.unix_ms), ...values, ...wordsOfEvent(point)].join("\n"));
    const share = Math.min(1, Math.max(0, this.x(point) / PLOT_WIDTH));
    this.tip.classList.toggle("left", share > 0.5);
    this.tip.style.setProperty("--at", share.toFixed(3));
  }
}

function wordsOfEvent(point) {
  const words = [];
  if (point.members_joined > 0) words.push(plural(point.members_joined, "member") + " joined");
  if (point.members_died > 0) words.push(plural(point.members_died, "member") + " died");
  return words;
}

/* What the lines across the plots are. */
function wordsOfEvents(history) {
  const words = [["members_joined", "dotted line: a member joined"],
    ["members_died", "dashed line: a member died"]].filter(([name]) => {
    const column = history.columns.indexOf(name);
    return history.points.some(row => row[column] > 0);
  });
  return words.map(([, text]) => text).join("; ");
}

function plotsMake() {
  const known = value => value === undefined || value < 0 ? null : value;
  const positive = value => value > 0 ? value : null;
  return [
    new Plot("plot-bandwidth", {name: "Bandwidth", words: wordsOfRate,
      scale: values => linearScale(values, 1e6), series: [
        {name: "get", of: p => known(p.get_bytes_per_second)},
        {name: "set", of: p => known(p.set_bytes_per_second)}]}),
    new Plot("plot-latency", {name: "Latency of a batch", words: wordsOfTime,
      scale: powerScale, series: [
        {name: "get p50", of: p => positive(p.get_p50_seconds)},
        {name: "get p99", of: p => positive(p.get_p99_seconds)},
        {name: "set p99", of: p => positive(p.set_p99_seconds)}]}),
    new Plot("plot-hits", {name: "Hit ratio of get", words: share => wordsOfShare(share),
      scale: shareScale, series: [
        {name: "all", of: p => known(p.get_hit_ratio)},
        {name: "local", of: p => known(p.get_local_ratio)},
        {name: "remote", of: p => known(p.get_remote_ratio)}]}),
  ];
}

function plotsShow(plots, history) {
  const points = history.points.map(row => {
    const point = {};
    history.columns.forEach((name, i) => { point[name] = row[i]; });
    return point;
  });
  for (const plot of plots) plot.show(points);
}
