/*
 * Words for figures, and what the page judges from an answer of /api/status: pure functions, nothing
 * here touches the document. Figures themselves are computed by the engine (figures.def).
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

/* -1: there was nothing to measure. */
const wordsOfTime = seconds =>
  seconds < 0 ? "–" : scaled(seconds * 1e9, 1000, ["ns", "µs", "ms", "s"]);
const wordsOfRate = bytes => scaled(bytes, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
const wordsOfBytes = bytes => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const wordsOfCount = n =>
  n < 10000 ? String(Math.round(n)) : scaled(n, 1000, ["", "k", "M", "G", "T"]);
const wordsOfShare = share => share < 0 ? "–" : (share * 100).toFixed(1) + "%";
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

/* ---- what the page judges -------------------------------------------------------------------- */

/*
 * A rail is behind when it is out of use, or carries less than half of the median of the others
 * (each against its line rate, where all are known) while they are busy.
 */
const RAIL_BUSY = 20e6; /* bytes/s */
function railFigures(report) {
  const lines = report.rails.map(r => r.figures.rail_link_bytes_per_second);
  const known = lines.every(line => line > 0);
  const rates = report.rails.map(r => r.recent.rail_read_bytes_per_second);
  const weights = rates.map((rate, i) => known ? rate / lines[i] : rate);
  return report.rails.map((rail, i) => {
    const others = weights.filter((_, other) =>
      other !== i && report.rails[other].state === "up").sort((x, y) => x - y);
    const usual = (others.length ? others[others.length >> 1] : 0) * (known ? lines[i] : 1);
    return {rail, rate: rates[i], usual, out: rail.state !== "up",
      behind: rail.state === "up" && usual > RAIL_BUSY && rates[i] < usual / 2};
  });
}

/*
 * A poll core is disturbed when its turns were kept apart often, or once for long. That is a fault
 * only where the core was to run nothing else: it polls busily and is isolated.
 */
const GAP_LONG_SECONDS = 98304e-9;
const GAPS_PER_SECOND = 10;
function coreFigures(report) {
  return report.poll_cores.map((core, i) => {
    const {poll_core_gaps: gaps, poll_core_gap_longest_seconds: longest} = core.recent;
    const rail = report.rails.find(r => r.poll_core === i);
    const mode = !rail || !rail.busy ? "adaptive" : rail.isolated ? "isolated" : "not isolated";
    return {core, mode, gaps, longest, busy: core.recent.poll_core_busy_ratio,
      disturbed: mode === "isolated" && gaps > 0 &&
        (longest >= GAP_LONG_SECONDS || gaps > GAPS_PER_SECOND * report.recent.seconds)};
  });
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
