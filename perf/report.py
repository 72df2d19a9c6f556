#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns results.json into report.html, and into report.md in the same folder:

    perf/report.py build/perf/results.json build/perf/report.html

The report always has tables, and plots if python3-matplotlib is installed (tools/install --perf).
Every figure from a modelled link is marked "modelled" in its heading, its row, and its plot's title
and axis.
"""

import base64
import html
import io
import json
import sys

import bench
import machine

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plot
except ImportError:
    plot = None

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .25em .8em; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top } td.n { text-align: right; white-space: nowrap }
.met { color: #17692b } .not { color: #a51d1d; font-weight: bold }
.modelled { background: #fff3cd; padding: 0 .4em; border-radius: .3em; font-size: 85% }
pre { background: #f4f4f4; padding: .6em; overflow-x: auto } img { max-width: 100% }
"""
TAG = '<span class="modelled">modelled</span>'


def text(value):
    return html.escape(str(value))


def is_modelled(result, *texts):
    return result["modelled"] or any("modelled" in t for t in texts)


def marked(label, modelled):
    return f"{label} (modelled)" if modelled and "modelled" not in label else label


def scale(axes, x):
    """Makes the x axis logarithmic if x spans a factor of 16; the measured values are its ticks."""
    if all(bench.number(v) and v > 0 for v in x) and len(x) > 2 and max(x) / min(x) >= 16:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    if all(map(bench.number, x)) and len(x) <= 12:
        axes.set_xticks(x, [f"{v:g}" for v in x])


def drawn(series, modelled):
    """Returns the plot as SVG text."""
    figure, axes = plot.subplots(figsize=(7.5, 4.2))
    for name, points in series["lines"].items():
        ceiling = any(word in name for word in ("ceiling", "goal", "memcpy", "bare"))
        axes.plot(series["x"], [float("nan") if p is None else p for p in points], label=name,
                  linestyle="--" if ceiling else "-", marker="." if len(points) <= 64 else "")
    scale(axes, series["x"])
    axes.set_ylim(bottom=0)
    axes.set_title(marked(series["title"], modelled))
    axes.set_xlabel(series["x_label"])
    axes.set_ylabel(marked(series["y_label"], modelled))
    axes.grid(alpha=.3)
    axes.legend()
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    plot.close(figure)
    return out.getvalue()


def series_part(result, series):
    modelled = is_modelled(result, series["title"], series["y_label"])
    title = marked(series["title"], modelled)
    if plot:
        data = base64.b64encode(drawn(series, modelled).encode()).decode()
        yield f'<p><img alt="{text(title)}" src="data:image/svg+xml;base64,{data}"></p>'
        yield f"<details><summary>{text(title)}: the numbers</summary>"
    else:
        yield f"<h3>{text(title)}</h3>"
    unit = marked(series["y_label"], modelled)
    yield f"<table><tr><th>{text(series['x_label'])}</th>"
    yield "".join(f"<th>{text(name)}, {text(unit)}</th>" for name in series["lines"]) + "</tr>"
    for i, x in enumerate(series["x"]):
        cells = [points[i] for points in series["lines"].values()]
        yield f"<tr><td>{text(bench.amount(x) if bench.number(x) else x)}</td>" + "".join(
            f'<td class="n">{"" if c is None else bench.amount(c)}</td>' for c in cells) + "</tr>"
    yield "</table>" + ("</details>" if plot else "")


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
               f"<td class=\"n\">{bench.amount(figure['value'])} {text(figure['unit'])}</td>"
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
    yield f"<style>{STYLE}</style><h1>PeerCache engine: benchmarks</h1>"
    yield f"<p>{text(results['started'])}{', a quick run: less exact' if results['quick'] else ''}."
    yield " Nothing here was measured on a NIC. <em>Modelled</em> figures come from a link model"
    yield " with a set rate and round-trip time; they show how well the engine schedules it.</p>"
    if build["type"] != "release" or build["sanitizers"] != "none":
        yield "<p class=\"not\">This is not a release build: its figures are meaningless.</p>"
    if not plot:
        yield "<p>No plots: python3-matplotlib is not installed (tools/install --perf).</p>"
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
                yield (f"| {row['name']} | {name} | {bench.amount(figure['value'])} "
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
