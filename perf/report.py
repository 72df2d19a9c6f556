#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns results.json into report.html, and into report.md in the same folder:

    perf/report.py build/perf/results.json build/perf/report.html

Every figure from a modelled link is marked "modelled" in its heading, its row, and its plot's title
and axis.
"""

import json
import sys

import bench
import machine
import plot  # bench.py has put it on the path
from plot import text

TAG = '<span class="modelled">modelled</span>'


def is_modelled(result, *texts):
    return result["modelled"] or any("modelled" in t for t in texts)


def marked(label, modelled):
    return f"{label} (modelled)" if modelled and "modelled" not in label else label


def series_part(result, series):
    modelled = is_modelled(result, series["title"], series["y_label"])
    yield from plot.part({**series, "title": marked(series["title"], modelled),
                          "y_label": marked(series["y_label"], modelled)})


def goal_cell(figure):
    if "goal" not in figure:
        return ""
    state = '<span class="met">met</span>' if figure["met"] else '<span class="not">not met</span>'
    return f"{text(figure['goal'])}: {state}"


def figures_table(rows):
    """An HTML table of figures; `rows`: pairs (result, figure)."""
    yield "<table><tr><th>figure</th><th>value</th><th>goal</th><th>how</th></tr>"
    for result, figure in rows:
        tag = " " + TAG if is_modelled(result, figure["name"], figure.get("text", "")) else ""
        yield (f"<tr><td>{text(figure['name'])}{tag}</td>"
               f"<td class=\"n\">{plot.amount(figure['value'])} {text(figure['unit'])}</td>"
               f"<td>{goal_cell(figure)}</td><td>{text(figure.get('text', ''))}</td></tr>")
    yield "</table>"


def bench_part(row):
    result = row.get("result")
    tag = " " + TAG if result and result["modelled"] else ""
    yield f"<h2 id=\"{text(row['name'])}\">{text(row['name'])}{tag}</h2><p>{text(row['what'])}</p>"
    if not result:
        state = text(row["status"].upper() if row["status"] == "failed" else row["status"])
        yield f"<p class=\"not\">{state}: {text(row.get('reason', ''))}</p>"
        if row.get("said"):
            yield "<pre>" + text("\n".join(row["said"])) + "</pre>"
        return
    yield from figures_table([(result, figure) for figure in result["figures"]])
    for series in result.get("series", []):
        yield from series_part(result, series)
    if result.get("notes"):
        yield "<ul>" + "".join(f"<li>{text(note)}</li>" for note in result["notes"]) + "</ul>"
    yield f"<p>{row['seconds']} s; load average before: {row['load_before']:.2f}</p>"


def summary(benches):
    rows = [(row["result"], figure) for row in benches if "result" in row
            for figure in row["result"]["figures"] if "goal" in figure]
    others = [row for row in benches if row["status"] != "ok"]
    met = sum(figure["met"] for _, figure in rows)
    yield f"<p>{met} of {len(rows)} goals met"
    yield "".join(f"; <a href=\"#{text(r['name'])}\">{text(r['name'])}</a> {text(r['status'])}"
                  for r in others) + ".</p>"
    if rows:
        yield from figures_table(rows)


def page(results):
    m, build = results["machine"], results["machine"]["build"]
    yield "<!doctype html><meta charset=utf-8><title>PeerCache engine: perf</title>"
    yield f"<style>{plot.STYLE}</style><h1>PeerCache engine: benchmarks</h1>"
    yield f"<p>{text(results['started'])}{', a quick run: less exact' if results['quick'] else ''}."
    yield " Nothing here was measured on a NIC. <em>Modelled</em> figures come from a link model"
    yield " with a set rate and round-trip time; they show how well the engine schedules it.</p>"
    if build["type"] != "release" or build["sanitizers"] != "none":
        yield "<p class=\"not\">This is not a release build: its figures are meaningless.</p>"
    yield "<h2>Goals</h2>"
    yield from summary(results["benches"])
    for row in results["benches"]:
        yield from bench_part(row)
    yield "<h2>The machine</h2><table>"
    for what, said in machine.rows(m):
        yield f"<tr><td>{text(what)}</td><td>{text(said)}</td></tr>"
    yield "</table>"


def markdown(results):
    """Yields the goals and the machine as Markdown, for a README."""
    yield "| benchmark | figure | measured | goal | |\n|---|---|---|---|---|"
    for row in results["benches"]:
        result = row.get("result")
        for figure in result["figures"] if result else []:
            if "goal" in figure:
                name = marked(figure["name"], is_modelled(result, figure.get("text", "")))
                met = "met" if figure["met"] else "not met"
                yield (f"| {row['name']} | {name} | {plot.amount(figure['value'])} "
                       f"{figure['unit']} | {figure['goal']} | {met} |")
        if not result:
            yield f"| {row['name']} | | {row['status']}: {row.get('reason', '')} | | |"
    said = "; ".join(f"{what} {text}" for what, text in machine.rows(results["machine"]))
    yield f"\n{results['started']}{', quick' if results['quick'] else ''}. {said}."


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1]) as f:
        results = json.load(f)
    with open(sys.argv[2], "w") as f:
        f.write("\n".join(page(results)) + "\n")
    with open(sys.argv[2].removesuffix(".html") + ".md", "w") as f:
        f.write("\n".join(markdown(results)) + "\n")


if __name__ == "__main__":
    main()
