/*
 * What the page shows, computed from two answers of /api/status: pure functions, nothing here
 * touches the document.
 */

/* ---- words ----------------------------------------------------------------------------------- */

/* Three significant digits without an exponent. */
function digits(value) {
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return value.toFixed(1);
  return value.toFixed(2);
}

function scaled(value, step, units) {
  let unit = 0;
  /* 999.5 would be shown as 1000. */
  while (unit + 1 < units.length && value >= step * 0.9995) {
    value /= step;
    unit++;
  }
  return (unit === 0 ? value.toFixed(0) : digits(value)) + " " + units[unit];
}

const wordsOfTime = ns => scaled(ns, 1000, ["ns", "µs", "ms", "s"]);
const wordsOfRate = bytes => scaled(bytes, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
const wordsOfBytes = bytes => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const wordsOfCount = n =>
  n < 10000 ? String(Math.round(n)) : scaled(n, 1000, ["", "k", "M", "G", "T"]);
const wordsOfShare = share => (share * 100).toFixed(1) + "%";
const wordsOfClock = ms => new Date(ms).toLocaleTimeString("en-GB");
const plural = (n, one, many) => n + " " + (n === 1 ? one : many || one + "s");

function wordsOfPerSecond(n) {
  return (n > 0 && n < 10 ? n.toFixed(1) : wordsOfCount(n)) + "/s";
}

function wordsOfSpan(ms) {
  const s = Math.floor(ms / 1000), min = Math.floor(s / 60), h = Math.floor(min / 60);
  if (s < 120) return s + " s";
  if (min < 120) return min + " min";
  if (h < 48) return h + " h";
  return Math.floor(h / 24) + " days";
}

/*
 * A name from the network. The engine writes each byte as one character: UTF-8 is put together
 * again. Characters that would hide or reorder the text around them are replaced.
 */
function wordsOfName(name) {
  let text = String(name);
  if (/[\x80-\xff]/.test(text)) {
    try {
      const bytes = Uint8Array.from(text, c => c.charCodeAt(0));
      text = new TextDecoder("utf-8", {fatal: true}).decode(bytes);
    } catch { /* not UTF-8: shown byte by byte */ }
  }
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "\ufffd");
}

/* ---- latencies ------------------------------------------------------------------------------- */

/* As latency_quantile_ns() of engine/abi/latency.h: the upper bound of the bucket; null: empty. */
function quantile(lower, counts, permille) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  const rank = Math.max(1, Math.ceil(total * permille / 1000));
  let seen = 0;
  if (!total) return null;
  for (let i = 0; i + 1 < counts.length; i++) {
    seen += counts[i];
    if (seen >= rank) return lower[i + 1];
  }
  return lower[lower.length - 1];
}

/* ---- differences ----------------------------------------------------------------------------- */

const WINDOW_MS = 10000;

/* Answers of the last WINDOW_MS and the one before; all of one start of one engine. */
function remember(past, status) {
  const last = past[past.length - 1];
  if (last && (last.report.incarnation !== status.report.incarnation ||
      last.report.uptime_ms > status.report.uptime_ms)) past.length = 0;
  if (past.length && past[past.length - 1].report.uptime_ms === status.report.uptime_ms) past.pop();
  past.push(status);
  while (past.length > 2 && status.report.uptime_ms - past[1].report.uptime_ms >= WINDOW_MS)
    past.shift();
}

/* now - base of every number in it, also within objects and arrays; without base: now itself. */
function growth(now, base) {
  if (typeof now === "number")
    return Math.max(0, now - (typeof base === "number" ? base : 0));
  if (Array.isArray(now)) return now.map((value, i) => growth(value, base && base[i]));
  if (now && typeof now === "object") {
    const grown = {};
    for (const key of Object.keys(now)) grown[key] = growth(now[key], base && base[key]);
    return grown;
  }
  return now;
}

function latencyFigures(status, calls) {
  const of = {};
  for (const call of ["get", "set", "exists"])
    of[call] = [500, 990, 999].map(p => quantile(status.latency.lower_ns, calls[call], p));
  return of;
}

/*
 * A rail is behind when it is out of use, or carries less than half of the median of the others
 * (each against its line rate, where all are known) while they are busy.
 */
const RAIL_BUSY = 20e6; /* bytes/s */
function railFigures(report, grown, seconds) {
  const known = report.rails.every(r => r.gbps > 0);
  const rates = grown.map(r => r.counters.bytes_read / seconds);
  const weights = rates.map((rate, i) => known ? rate / report.rails[i].gbps : rate);
  return report.rails.map((rail, i) => {
    const others = weights.filter((_, other) =>
      other !== i && report.rails[other].state === "up").sort((x, y) => x - y);
    const median = others.length ? others[others.length >> 1] : 0;
    const busy = median * (known ? rail.gbps : 1) > RAIL_BUSY;
    return {rail, rate: rates[i], out: rail.state !== "up",
      behind: rail.state === "up" && busy && weights[i] < median / 2,
      usual: median * (known ? rail.gbps : 1)};
  });
}

/*
 * A poll core is disturbed when its turns were kept apart often, or once for long. That is a fault
 * only where the core was to run nothing else: it polls busily and is isolated.
 */
const GAP_LONG_NS = 98304;
const GAPS_PER_SECOND = 10;
function coreFigures(report, grown, seconds) {
  return report.poll_cores.map((core, i) => {
    const from = Object.keys(grown[i].gaps_from_ns).map(Number).sort((x, y) => x - y);
    const longest = from.filter(ns => grown[i].gaps_from_ns[ns] > 0).pop() || 0;
    const gaps = grown[i].gaps_over_10us, rail = report.rails.find(r => r.poll_core === i);
    const mode = !rail || !rail.busy ? "adaptive" : rail.isolated ? "isolated" : "not isolated";
    return {core, mode, gaps, longest, busy: grown[i].busy_ns / 1e9 / seconds,
      disturbed: mode === "isolated" && gaps > 0 && (longest >= GAP_LONG_NS || gaps / seconds > GAPS_PER_SECOND)};
  });
}

/* Everything that the page shows of the time between the oldest answer in `past` and the newest. */
function figures(past) {
  const status = past[past.length - 1], report = status.report;
  const base = past.length > 1 ? past[0] : null, before = base && base.report;
  const seconds = Math.max(0.001, (report.uptime_ms - (before ? before.uptime_ms : 0)) / 1000);
  const calls = growth(report.calls, before && before.calls);
  const latency = growth(status.latency, base && base.latency);
  const sameRails = before && before.rails.length === report.rails.length;
  const rails = growth(report.rails, sameRails ? before.rails : null);
  const cores = growth(report.poll_cores, sameRails ? before.poll_cores : null);
  const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
  return {
    status, report, seconds, calls,
    since: base ? "in the last " + Math.round(seconds) + " s" : "since the engine started",
    latency: latencyFigures(status, latency),
    rails: railFigures(report, rails, seconds).map((rail, i) => ({...rail,
      readP99: quantile(status.latency.lower_ns, latency.rails[i], 990)})),
    cores: coreFigures(report, cores, seconds),
    counters: growth(report.counters, before && before.counters),
    readsFailed: sum(rails, r => r.counters.reads_failed),
    pool: sum(report.rails, r => r.pool_bytes),
    poolUsed: sum(report.rails, r => r.pool_used_bytes),
    pages: sum(report.rails, r => r.pages),
  };
}

/* Members: those on the map and those that left it, in the order in which they need a look. */
function memberFigures(report) {
  const rank = {down: 0, silent: 1, up: 2};
  const all = report.members.concat(report.members_down.map(m => ({...m, state: "down"})));
  return all.map(m => ({...m, name: wordsOfName(m.name), address: wordsOfName(m.address)}))
    .sort((x, y) => rank[x.state] - rank[y.state] || x.name.localeCompare(y.name, "en",
      {numeric: true}));
}

function versionFigures(report) {
  const counts = new Map();
  for (const m of report.members) {
    const version = wordsOfName(m.software || "") || "unknown";
    counts.set(version, (counts.get(version) || 0) + 1);
  }
  return [...counts].sort((x, y) => y[1] - x[1]);
}
