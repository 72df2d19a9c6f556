/* Writes figures into the page: the health banner, the tiles and the tables. */

const id = name => document.getElementById(name);

/* Text only, and only when it changes: whatever a name holds, it is never markup. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/* ---- health ---------------------------------------------------------------------------------- */

const LEVELS = ["critical", "warning", "info"];

function banner(level, verdict, lines) {
  setAttribute(id("health"), "data-level", level);
  setText(id("verdict"), verdict);
  [0, 1, 2].forEach(i => setText(id("worst-" + i), lines[i] || ""));
  setText(id("worst-more"), lines.length > 1 ?
    `and ${lines.length - 1} more: see Findings below` : "");
}

function verdictOf(findings) {
  const words = {critical: "critical", warning: "warning", info: "note"};
  const counts = LEVELS.map(level => [level, findings.filter(f => f.severity === level).length])
    .filter(([, n]) => n);
  const list = counts.map(([level, n]) =>
    level === "critical" ? n + " critical" : plural(n, words[level])).join(", ");
  if (!counts.length) return "Healthy";
  return (counts[0][0] === "info" ? "Healthy, " : "Not healthy: ") + list;
}

/* Judges the cluster. `cluster`: of /api/cluster; null: other members are not known. */
function showHealth(status, cluster) {
  const own = status.health.findings.map(f =>
    ({severity: f.severity, member: "this engine", text: wordsOfName(f.text), line: ""}));
  const findings = own.concat(cluster ? findingsOfOthers(cluster) : []).sort((x, y) =>
    LEVELS.indexOf(x.severity) - LEVELS.indexOf(y.severity));
  const texts = findings.map(f => f.line === "" ? f.text : `${f.member}: ${f.text}`);
  if (texts.length > 3) texts[2] += ` – and ${texts.length - 3} more below`;
  banner(findings.length ? findings[0].severity : "ok", verdictOf(findings),
    texts.length ? texts : ["Nothing to report" + (cluster ? wordsOfJudged(cluster) :
      " of this engine; other members are not known") + "."]);
  rows("table-findings", findings.length ? findings.map(f => ({level: f.severity,
    cells: [f.severity === "info" ? "note" : f.severity, f.member, f.text]})) :
    [{level: "ok", cells: ["–", "–", "none"]}]);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A line that starts with "!" is what the reader should see first. */
function tile(name, level, big, lines) {
  const node = id(name), items = node.querySelectorAll("ul > li");
  setAttribute(node, "data-level", level);
  if (big !== null) setText(node.querySelector(".big"), big);
  items.forEach((item, i) => {
    const line = lines[i] || "", marked = line.startsWith("!");
    setText(item, marked ? line.slice(1) : line);
    item.classList.toggle("marked", marked);
  });
}

const width = share => (100 * Math.min(1, Math.max(0, share || 0))).toFixed(2);

function showMembers(members, report) {
  const not = members.filter(m => m.state !== "up");
  const lines = not.slice(0, not.length > 3 ? 2 : 3).map(m =>
    `!${m.name}: ${m.state} since ${wordsOfClock(report.time_ms - m.state_ms)}`);
  if (not.length > 3) lines.push(`!and ${not.length - 2} more: see Cluster`);
  if (!members.length) tile("members", "info", "none yet", ["The engine is starting."]);
  else tile("members", not.length ? "warning" : "ok",
    `${members.length - not.length} of ${members.length} up`,
    not.length ? lines : ["None is down, none is silent.",
      members.length === 1 ? "This engine is alone." : ""]);
}

const sinceOf = report => `in the last ${Math.round(report.recent.seconds)} s`;

function showHits(report) {
  const recent = report.recent, failed = recent.get_failed_pages;
  const {get_local_ratio: local, get_remote_ratio: remote} = recent;
  setAttribute(id("hits-local"), "width", width(local));
  setAttribute(id("hits-remote"), "width", width(remote));
  setAttribute(id("hits-remote"), "x", width(local));
  const exists = recent.exists_hit_ratio < 0 ? "" : `exists: ${wordsOfShare(
    recent.exists_hit_ratio)} found, ${wordsOfShare(recent.exists_usable_ratio)} usable`;
  if (recent.get_hit_ratio < 0)
    return tile("hits", "ok", "–", [`No get ${sinceOf(report)}.`, exists]);
  tile("hits", failed ? "warning" : "ok", wordsOfShare(recent.get_hit_ratio), [
    `local ${wordsOfShare(local)}, remote ${wordsOfShare(remote)}`,
    `${wordsOfCount(recent.get_pages_per_second)} pages/s`,
    failed ? `!${wordsOfCount(failed)} pages failed or came too late` : exists]);
}

function showRailBars(f) {
  const bars = id("rail-bars"), top = Math.max(1, ...f.rails.map(r => r.rate));
  const step = 100 / Math.max(4, f.rails.length);
  const shown = f.rails.length > 1 ? f.rails : []; /* one has nothing to be compared with */
  while (bars.childNodes.length > 2 * shown.length) bars.lastChild.remove();
  shown.forEach((r, i) => {
    if (!bars.childNodes[2 * i]) bars.append(svg("rect", {}), svg("rect", {}));
    const back = bars.childNodes[2 * i], front = bars.childNodes[2 * i + 1];
    const height = Math.max(r.rate > 0 ? 1 : 0, 24 * r.rate / top);
    const place = {x: (i * step).toFixed(2), width: (step * 0.7).toFixed(2)};
    for (const [node, more] of [[back, {class: "empty", y: 0, height: 24}],
      [front, {class: r.behind || r.out ? "behind" : "a", y: (24 - height).toFixed(2),
        height: height.toFixed(2)}]])
      for (const [name, value] of Object.entries({...place, ...more}))
        setAttribute(node, name, value);
  });
}

function showBandwidth(f) {
  const name = r => `rail ${f.rails.indexOf(r)} (${wordsOfName(r.rail.device)})`;
  const out = f.rails.filter(r => r.out), behind = f.rails.filter(r => r.behind);
  const more = list => list.length > 1 ? ` and ${list.length - 1} more` : "";
  let line = f.rails.length > 1 ? "No rail is behind." : "One rail.";
  if (!f.rails.length) line = "No rail.";
  else if (out.length) line = `!${name(out[0])} is ${out[0].rail.state}${more(out)}`;
  else if (behind.length)
    line = `!${name(behind[0])} is behind: ${wordsOfRate(behind[0].rate)}, others ` +
      wordsOfRate(behind[0].usual) + more(behind);
  showRailBars(f);
  tile("bandwidth", out.length || behind.length ? "warning" : "ok",
    wordsOfRate(f.report.recent.get_bytes_per_second),
    [`get; set ${wordsOfRate(f.report.recent.set_bytes_per_second)}`, line]);
}

/* Rows of a table: p50, p99 and p99.9 of get, set and exists. */
function showPercentiles(table, of) {
  for (const call of ["get", "set", "exists"])
    ["p50", "p99", "p999"].forEach((which, i) =>
      setText(id(`${table}-${call}`).querySelectorAll("td")[i],
        wordsOfTime(of[`${call}_${which}_seconds`])));
}

function showLatency(report) {
  const recent = report.recent, sum = recent.get_batches_per_second +
    recent.set_batches_per_second + recent.exists_batches_per_second;
  showPercentiles("latency", recent);
  tile("latency", "ok", null,
    [sum ? `${wordsOfCount(sum)} batches/s` : `No call ${sinceOf(report)}.`]);
}

/* Gaps on a core that sleeps, or that other threads may use, are no fault: only told. */
function showCores(f) {
  const bad = f.cores.filter(c => c.disturbed), calm = f.cores.find(c => c.mode !== "isolated");
  const gaps = f.cores.reduce((n, c) => n + c.gaps, 0);
  const longest = f.cores.reduce((most, c) => Math.max(most, c.longest), 0);
  const busiest = f.cores.reduce((share, c) => Math.max(share, c.busy), 0);
  tile("cores", bad.length ? "warning" : "ok",
    !f.cores.length ? "none" : bad.length ? `${bad.length} of ${f.cores.length} disturbed` :
      calm ? calm.mode : "undisturbed",
    [gaps ? `${bad.length ? "!" : ""}${wordsOfCount(gaps)} gaps over 10 µs, ` +
      `longest over ${wordsOfTime(longest)}` : "No gap over 10 µs.",
    `busiest core ${wordsOfShare(Math.min(1, busiest))} busy`]);
}

function showSpace({recent, figures}) {
  const pool = recent.pool_used_ratio, directory = recent.directory_used_ratio;
  setAttribute(id("space-pool"), "width", width(pool));
  setAttribute(id("space-directory"), "width", width(directory));
  tile("space", directory > 0.9 ? "warning" : "ok", `pool ${wordsOfShare(pool)}`, [
    `${wordsOfBytes(recent.pool_used_bytes)} of ${wordsOfBytes(recent.pool_bytes)}, ` +
      `${wordsOfCount(figures.pages)} pages`,
    `directory ${wordsOfShare(directory)}, ${wordsOfCount(figures.directory_entries)} entries`]);
}

function showEvictions({recent}) {
  const full = recent.room_refused || recent.room_late_pages;
  tile("evictions", full || recent.entries_dropped ? "warning" : "ok",
    wordsOfPerSecond(recent.evicted_pages_per_second) + " evicted", [
      full ? `!${wordsOfCount(full)} requests for room refused or late` : "No request for room refused.",
      recent.entries_dropped ? `!${wordsOfCount(recent.entries_dropped)} directory entries dropped` :
        "No directory entry dropped.",
      recent.reads_failed ? `!${wordsOfCount(recent.reads_failed)} READs failed` :
        recent.eviction_age_seconds < 0 ? "No READ failed." :
          `after ${wordsOfSpan(1000 * recent.eviction_age_seconds)}; ` +
          `${wordsOfShare(recent.again_soon_ratio)} stored again in a minute`]);
}

function showDirectory(report) {
  const {directory_moving: moving, directory_owners_behind: behind} = report.figures;
  const lost = report.directory.dropped;
  const parts = [moving ? "!Entries move to new owners." : "Nothing moves.",
    behind ? `!${plural(behind, "owner")} lack${behind === 1 ? "s" : ""} entries of this engine` :
      lost ? `!${wordsOfCount(lost)} entries dropped since the start` :
        "Owners have all entries of this engine."];
  tile("directory", lost ? "warning" : moving || behind ? "info" : "ok",
    moving ? "moving" : behind || lost ? "incomplete" : "complete", parts);
}

function showVersions(report) {
  const versions = versionFigures(report), most = versions.slice(0, 3)
    .map(([version, n]) => `${n} × ${version}`).join(", ");
  if (versions.length < 2)
    return tile("versions", "ok", versions.length ? versions[0][0] : wordsOfName(report.version),
      [versions.length ? "All members run it." : "This engine's."]);
  const odd = report.members.find(m =>
    (wordsOfName(m.software || "") || "unknown") !== versions[0][0]);
  tile("versions", "warning", `${versions.length} differ`,
    ["!" + most, `!for example ${wordsOfName(odd.name)}`]);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The text of a cell, as a link if there is one. */
function showCell(cell, text, link) {
  let to = cell.firstElementChild;
  if (!link && to) to.remove();
  if (!link) {
    setText(cell, text);
    return;
  }
  if (!to) {
    setText(cell, "");
    to = element("a", "", cell);
    to.rel = "noreferrer";
  }
  setAttribute(to, "href", link);
  setAttribute(to, "title", link);
  setText(to, text);
}

/* Rows are kept and rewritten: focus and selection stay where they are. */
function rows(table, list) {
  const body = id(table).tBodies[0], head = id(table).tHead.rows[0].cells;
  while (body.rows.length > list.length) body.lastElementChild.remove();
  list.forEach((row, i) => {
    const line = body.rows[i] || element("tr", "", body);
    setAttribute(line, "data-level", row.level);
    setAttribute(line, "data-up", row.up === true); /* that the state is no part of the fault */
    row.cells.forEach((text, column) => {
      let cell = line.cells[column];
      if (!cell) {
        cell = element(column ? "td" : "th", head[column].className, line);
        if (!column) cell.scope = "row";
      }
      showCell(cell, text, column ? "" : row.link);
    });
  });
}

const ROWS_MAX = 256;
const LEVEL_OF_STATE = {up: "ok", silent: "warning", slow: "warning", down: "warning",
  lost: "critical"};

const wordsOfLine = bytes => bytes ? Math.round(bytes * 8e-9) + " Gbit/s" : "not known";

function showTables(f, members) {
  rows("table-rails", f.rails.map((r, i) => ({
    level: r.behind ? "warning" : LEVEL_OF_STATE[r.rail.state] || "warning",
    cells: [`${i} ${wordsOfName(r.rail.device)}`, r.behind ? "up, behind" : r.rail.state,
      wordsOfRate(r.rate), wordsOfLine(r.rail.figures.rail_link_bytes_per_second),
      wordsOfTime(r.rail.recent.rail_read_p99_seconds),
      wordsOfShare(r.rail.recent.rail_pool_used_ratio),
      String(r.rail.figures.rail_peers_out)]})));
  rows("table-cores", f.cores.map((c, i) => ({level: c.disturbed ? "warning" : "ok",
    cells: [String(i), String(c.core.rails), c.mode, wordsOfShare(Math.min(1, c.busy)),
      wordsOfCount(c.gaps), c.gaps ? "over " + wordsOfTime(c.longest) : "–"]})));
  rows("table-members", members.slice(0, ROWS_MAX).map(m => ({level: LEVEL_OF_STATE[m.state],
    cells: [m.name + (m.self ? " (this engine)" : ""),
      m.state === "up" ? "up" : `${m.state} for ${wordsOfSpan(m.state_ms)}`,
      `${m.address}:${m.port}`, m.rails === undefined ? "–" : String(m.rails),
      m.software === undefined ? "–" : wordsOfName(m.software) || "unknown"]})));
  setText(id("members-more"), members.length > ROWS_MAX ?
    `and ${members.length - ROWS_MAX} more, in /api/status` : "");
}

function showAll(report) {
  const members = memberFigures(report);
  const f = {report, rails: railFigures(report), cores: coreFigures(report)};
  setText(id("engine"), `${wordsOfName(report.name)}, cluster ` +
    `${wordsOfName(report.cluster)}, version ${wordsOfName(report.version)}`);
  id("security").hidden = !report.unsecured;
  setText(id("window"), sinceOf(report));
  showMembers(members, report);
  showHits(report);
  showBandwidth(f);
  showLatency(report);
  showCores(f);
  showSpace(report);
  showEvictions(report);
  showDirectory(report);
  showVersions(report);
  showTables(f, members);
}
