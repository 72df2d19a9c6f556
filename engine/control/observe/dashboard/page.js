/*
 * Requests /api/status every second, /api/history every five seconds and, while the tab is visible,
 * /api/cluster every second; tells at every moment whether what is shown is still true.
 *
 *   loading   nothing has come yet
 *   starting  the engine answers that it has no figures yet
 *   live      figures are fresh
 *   stale     the engine does not answer, or its control plane publishes nothing
 */

const POLL_MS = 1000, RETRY_MS = 250, GIVE_UP_MS = 3000, HISTORY_MS = 5000, LOOK_MS = 100;
const CLUSTER_LATE_MS = 5000; /* without an answer of /api/cluster: other members are not known */
const FIRST_MS = 1000; /* of waiting for /api/cluster before the page shows itself without it */
const STALE_MS = 1500; /* beyond the time that an answer needs */
const SHOWN_MS = 500;  /* for the first answer of a tab that is shown again */

const page = {
  status: null,   /* the newest answer */
  shown: null,    /* the answer that the page shows as fresh */
  came: 0,        /* when it came, performance.now() */
  trip: 0,        /* how long it took to come, ms */
  failed: false,  /* a request that ended after it came brought none */
  seen: 0,        /* since when this tab is the visible one, performance.now() */
  cluster: null,  /* the newest answer of /api/cluster */
  clusterCame: 0, /* when it came */
  starting: null, /* the engine's words while it has no figures */
  started: performance.now(),
};

async function request(path) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), GIVE_UP_MS);
  try {
    const response = await fetch(path, {signal: stop.signal, cache: "no-store"});
    const text = await response.text();
    return {code: response.status, text};
  } finally {
    clearTimeout(timer);
  }
}

async function pollStatus() {
  const asked = performance.now();
  let wait = RETRY_MS, failed = true;
  try {
    const answer = await request("/api/status");
    if (answer.code === 200) {
      accept(JSON.parse(answer.text), asked);
      failed = false;
      wait = Math.max(RETRY_MS, POLL_MS - page.trip);
    } else if (answer.code === 503 && !page.status) {
      page.starting = answer.text.trim();
      page.started = performance.now();
    }
  } catch { /* no answer: refresh() tells when that lasts */ }
  page.failed = failed;
  refresh();
  setTimeout(pollStatus, wait);
}

function accept(status, asked) {
  showAll(status);
  page.status = status;
  page.came = performance.now();
  page.trip = page.came - asked;
}

async function pollHistory() {
  try {
    const answer = await request("/api/history");
    if (answer.code === 200) {
      const history = JSON.parse(answer.text);
      plotsShow(page.plots, history);
      setText(id("history-when"), history.points.length ?
        `since ${wordsOfClock(history.points[0][0])}, a point every ${history.seconds} s` :
        "the first point comes after a few seconds");
      setText(id("history-events"), wordsOfEvents(history));
    }
  } catch { /* the next one will do */ }
  setTimeout(pollHistory, HISTORY_MS);
}

/* A hidden tab does not ask: each request makes the engine ask all members for 5 s. */
async function pollCluster() {
  try {
    if (!document.hidden) {
      const answer = await request("/api/cluster");
      if (answer.code === 200) acceptCluster(JSON.parse(answer.text));
    }
  } catch { /* no answer: clusterNow() tells when that lasts */ }
  refresh();
  setTimeout(pollCluster, POLL_MS);
}

function acceptCluster(cluster) {
  showCluster(cluster);
  page.cluster = cluster;
  page.clusterCame = performance.now();
  page.shown = null; /* the banner is about all members */
}

/* The answer of /api/cluster, if it is not too old. */
function clusterNow() {
  const late = performance.now() - page.clusterCame > CLUSTER_LATE_MS && !document.hidden &&
    performance.now() - page.seen > SHOWN_MS + CLUSTER_LATE_MS;
  if (page.cluster && late) {
    page.cluster = null;
    page.shown = null;
  }
  return page.cluster;
}

/* ---- fresh or stale -------------------------------------------------------------------------- */

function state(name, words) {
  setAttribute(document.body, "data-state", name);
  setText(id("freshness"), words);
}

function stale(why, age) {
  page.shown = null;
  const when = wordsOfClock(page.status.time_ms);
  state("stale", "STALE, data of " + when);
  banner("stale", "STALE: " + why, [
    `The figures below are ${wordsOfSpan(age)} old: of ${when}.`]);
  tile("data", "critical", wordsOfSpan(age) + " old", ["!STALE: " + why]);
  document.title = "STALE – PeerCache";
}

function silent() {
  if (page.starting !== null) {
    state("starting", "starting");
    banner("info", "Starting", [page.starting]);
  } else {
    state("loading", "no answer");
    banner("critical", "No answer from the engine",
      ["It has not answered since this page opened."]);
  }
}

function live(age) {
  page.shown = page.status;
  const status = page.status, lag = status.recent.loop_lag_p99_seconds;
  state("live", "live, " + wordsOfClock(status.time_ms));
  if (!page.cluster) showNoCluster();
  showHealth(status, page.cluster);
  tile("data", "ok", (age / 1000).toFixed(1) + " s old", [
    `engine up for ${wordsOfSpan(status.uptime_ms)}`,
    lag < 0 ? "" : `control loop late by ${wordsOfTime(lag)} (p99)`]);
  document.title = id("verdict").textContent + ` – ${wordsOfName(status.name)} – PeerCache`;
}

/*
 * No answer for too long. Browsers slow the timers of a hidden tab down to one turn a minute: its
 * answers are old because it did not ask.
 */
function late(now) {
  if (now - page.came <= STALE_MS + Math.min(page.trip, GIVE_UP_MS)) return false;
  return document.hidden ? page.failed : now - page.seen > SHOWN_MS;
}

/* Called often: an engine that is gone shows only in the time since its last answer. */
function refresh() {
  const now = performance.now(), since = now - page.came;
  const cluster = clusterNow();
  if (page.status && (cluster || now - page.started > FIRST_MS)) id("content").hidden = false;
  if (!page.status) {
    if (page.starting !== null || now - page.started > STALE_MS) silent();
    return;
  }
  if (late(now))
    stale("the engine does not answer", page.status.age_ms + since);
  else if (page.status.age_ms > STALE_MS)
    stale("the control plane is blocked", page.status.age_ms + since);
  else if (page.shown !== page.status) live(page.status.age_ms);
}

id("cluster-all").addEventListener("click", () => {
  id("cluster").classList.toggle("all");
  if (page.cluster) showCluster(page.cluster);
});
document.addEventListener("visibilitychange", () => { page.seen = performance.now(); });

page.plots = plotsMake();
setInterval(refresh, LOOK_MS);
pollStatus();
pollHistory();
pollCluster();
