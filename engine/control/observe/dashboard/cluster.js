/*
 * The cluster section: /api/cluster as a table of members, worst first, and tiles; what it adds to
 * the banner. All words of it may come from other hosts, so they are text and never markup.
 */

const CLUSTER_OLD_MS = 20000; /* the engine counts no older summary in its totals */
const CLUSTER_ROWS = 8; /* that are shown until all are wanted */

/* Short words for the ids of health.def; a newer member may send an id that is not here. */
const FINDING_WORDS = {
  loop_blocked: "control plane blocked", rails_all_out: "no rail in use", rail_lost: "a NIC died",
  registering: "not joined: memory is registered",
  rail_down: "a rail is down", rail_slow: "a rail is slow", member_down: "sends nothing",
  member_silent: "no heartbeats", pool_full: "pool full",
  disk_failed: "a disk failed", pages_corrupt: "damaged pages",
  disk_drops: "disk drops pages", directory_full: "directory full",
  reads_failing: "READs fail", versions_differ: "versions differ", stopping: "stopping",
  peers_out: "some peers not read over a rail", directory_moving: "directory entries move",
  absence_unproven: "absent keys are unreachable", directory_behind: "an owner lacks entries",
  statistics_refused: "client statistics refused", seeds_unmet: "alone: no seed answers",
  seed_silent: "a seed leads to no member", engine_refused: "an engine is refused",
  client_refused: "a client is refused", client_denied: "a client may not do that",
  keeper_gone: "the keeper has ended", address_gone: "an address of this host is gone",
  unsecured: "links are unsecured", certificate_ends: "a certificate ends soon",
};

function wordsOfFinding(finding) {
  return Object.hasOwn(FINDING_WORDS, finding) ? FINDING_WORDS[finding] :
    wordsOfName(finding).replaceAll("_", " ");
}

/* What is wrong with the member of the row; [] if nothing is. */
function faultsOfRow(row) {
  const parts = [], more = row.summary ? row.summary.findings - 1 : 0;
  if (row.finding) parts.push(wordsOfFinding(row.finding));
  if (row.finding && more > 0 && row.state === "up") parts.push(`${more} more`);
  if (row.why === "unanswered") parts.push("does not answer this engine");
  return parts;
}

/* Severity, what is wrong, and why the figures of the row are missing or old. */
function wordsOfRow(row) {
  const parts = faultsOfRow(row), severity = row.severity === "info" ? "note" : row.severity;
  if (parts.length && severity !== "ok") parts[0] = wordsOfName(severity) + ": " + parts[0];
  if (row.why === "waiting") parts.push(row.age_ms < 0 ? "no answer yet" : "no fresh answer");
  return parts.join("; ") || "nothing to report";
}

/*
 * What other members that are up report, for the banner: [{severity, member, text}]. Those that are
 * not up are findings of this engine. Rows that the answer leaves out are counted.
 */
function findingsOfOthers(cluster) {
  const grave = ["critical", "warning"], list = cluster.rows.filter(row =>
    !row.self && row.state === "up" && grave.includes(row.severity)).map(row =>
    ({severity: row.severity, member: wordsOfName(row.name), text: faultsOfRow(row).join("; ")}));
  for (const severity of grave) {
    const more = cluster.others[severity] - list.filter(f => f.severity === severity).length;
    if (more > 0)
      list.push({severity, member: "others", text: `${plural(more, "more member")} not shown here`});
  }
  return list;
}

/* Of how many members the banner can tell. */
function wordsOfJudged(cluster) {
  const up = cluster.up + cluster.silent;
  if (cluster.members < 2) return "";
  return cluster.asked >= up ? ` of all ${cluster.members} members` :
    ` of ${cluster.asked} of ${cluster.members} members; the others did not answer`;
}

/* Where the member's own dashboard is; "": not known. It has TLS as this page. */
const linkOfRow = row =>
  !row.self && /^http:\/\/[\w.:[\]-]+:\d+\/$/.test(row.dashboard || "") ?
    row.dashboard.replace("http:", location.protocol) : "";

/* Figures that are too old to count are not shown as if they were true. */
function clusterRow(row) {
  const of = row.summary && row.state !== "down" && row.age_ms <= CLUSTER_OLD_MS ?
    row.summary : null;
  const figures = of ? [wordsOfRate(of.get_bytes_per_second),
    wordsOfRate(of.set_bytes_per_second), wordsOfShare(of.get_hit_ratio),
    wordsOfShare(of.pool_used_ratio), wordsOfTime(of.get_p99_seconds)] : Array(5).fill("–");
  return {level: row.severity, up: row.state === "up", link: linkOfRow(row),
    cells: [wordsOfName(row.name) + (row.self ? " (this engine)" : ""),
      row.state === "up" ? "up" : `${wordsOfName(row.state)} for ${wordsOfSpan(row.state_ms)}`,
      wordsOfRow(row), ...figures, row.age_ms < 0 ? "–" : wordsOfSpan(row.age_ms)]};
}

function showTotals(cluster) {
  const all = cluster.totals, out = all.rails - all.rails_up;
  tile("cluster-traffic", "ok", wordsOfRate(all.get_bytes_per_second), [
    `get; set ${wordsOfRate(all.set_bytes_per_second)}`,
    `${wordsOfCount(all.get_pages_per_second)} pages/s, ` +
      `${wordsOfPerSecond(all.evicted_pages_per_second)} evicted`]);
  tile("cluster-hits", "ok", wordsOfShare(all.get_hit_ratio), [
    all.get_hit_ratio < 0 ? "No get in the last 10 s." : "of the pages of get, last 10 s"]);
  tile("cluster-rails", out ? "warning" : "ok", `${all.rails_up} of ${all.rails} in use`, [
    out ? `!${plural(out, "rail")} out of use` : "No rail is out of use.",
    all.moving || all.behind ? `!directory: ${all.moving} moving, ${all.behind} incomplete` :
      "All directories are complete."]);
  showPercentiles("cluster", all);
  tile("cluster-latency", "ok", null,
    [`the slowest of ${cluster.asked} of ${plural(cluster.members, "member")}, last 10 s`]);
}

function showCluster(cluster) {
  const bad = [[cluster.silent, "silent"], [cluster.down, "down"]].filter(([n]) => n);
  setText(id("cluster-title"),
    `Cluster: ${cluster.shown} of ${plural(cluster.members, "member")}`);
  setText(id("cluster-states"), [`worst first; ${cluster.up} up`,
    ...bad.map(([n, words]) => `${n} ${words}`)].join(", ") +
    `; totals are of ${cluster.asked} that answered`);
  showTotals(cluster);
  rows("table-cluster", cluster.rows.length ? cluster.rows.map(clusterRow) :
    [{level: "ok", cells: ["–", "–", "no member is known yet", ...Array(6).fill("–")]}]);
  setText(id("cluster-all"), id("cluster").classList.contains("all") ?
    `Show the first ${CLUSTER_ROWS} members` : `Show all ${cluster.shown} members`);
  id("cluster-all").hidden = cluster.rows.length <= CLUSTER_ROWS;
}

/* No answer of /api/cluster for a while: figures of other members would be old. */
function showNoCluster() {
  setText(id("cluster-title"), "Cluster");
  setText(id("cluster-states"), "other members are not known: no answer from /api/cluster");
  for (const name of ["traffic", "hits", "rails"]) tile("cluster-" + name, "ok", "–", []);
  tile("cluster-latency", "ok", null, []);
  for (const call of ["get", "set", "exists"])
    id("cluster-" + call).querySelectorAll("td").forEach(cell => setText(cell, "–"));
  rows("table-cluster", [{level: "ok", cells: ["–", "–", "not known", ...Array(6).fill("–")]}]);
  id("cluster-all").hidden = true;
}
