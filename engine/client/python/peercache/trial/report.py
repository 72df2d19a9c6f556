# SPDX-License-Identifier: Apache-2.0
"""Writes what a trial found: JSON, one HTML page with plots, an archive of everything. Main thread.

The first lines of each say whether to go on.
"""

import errno
import getpass
import html
import ipaddress
import json
import os
import re
import shutil
import socket
import tarfile
import time
from typing import Any, Iterator

from peercache.bench import plot
from peercache.bench.plot import text
from peercache.trial import host
from peercache.trial.frame import Refused, Trial

# A "no" of these means: pages may be wrong, or none moves.
GATES = ("engines", "bytes", "churn")
NEEDED = ("engines", "bytes: one process")  # without a "yes" of them nothing is known
CHURN = "churn: evictions and a kill"
LIMIT = 8 << 20  # bytes of one log in the archive: its end


def cured(trial: Trial) -> list[dict[str, Any]]:
    """The experiments that failed and that the setting makes harmless with which the engines
    ran: pages were read beside evictions, and none was wrong."""
    fallback = trial.facts.get("fallback")
    if not fallback or not any(s["name"] == CHURN and s["answer"] == "yes" for s in trial.steps):
        return []
    return [s for s in trial.steps if s["answer"] == "no" and fallback in s["do"]]


def verdict(trial: Trial) -> list[str]:
    """The first lines of the report: whether to go on, and why."""
    steps, mended = trial.steps, cured(trial)
    gate = [s for s in steps if s["answer"] == "no" and s not in mended and (
        s["name"].startswith(GATES) or s["name"] == "card" or needed(s))]
    other = [s for s in steps if s["answer"] == "no" and s not in gate]
    if gate:
        lines = ["Go on: NO. " + "; ".join(f"{s['name']}: {s['text']}" for s in gate)]
    elif trial.stopped:
        lines = ["Go on: NOT KNOWN. The trial was stopped; what follows is what there was."]
    elif not measured(trial):
        lines = ["Go on: NOT KNOWN. " + ("; ".join(
            f"{s['name']}: {s['text']}" for s in steps if needed(s) and s["answer"] != "yes") or
            f"Not all of it ran: card, {', '.join(NEEDED)}.")]
    elif mended:
        lines = [f"Go on: ONLY with {trial.facts['fallback']} on all hosts with this card. The "
                 "engines had it, and a page that came wrong was a miss. Send us the report."]
    elif trial.options.devices == ["soft"]:
        lines = ["Go on: NOT KNOWN. No ConnectX was examined: the engines had the software NIC."]
    elif host.pretended():
        lines = ["Go on: YES, with a real one. The ConnectX was software: no figure is that of a "
                 "card."]
    elif other:
        lines = ["Go on: YES, but mend first: " + ", ".join(s["name"] for s in other) + "."]
    else:
        lines = ["Go on: YES. Nothing of what our code assumes was found to be different."]
    lines.append(f"{len(steps)} steps: {trial.count('yes')} yes, {trial.count('no')} no, "
                 f"{trial.count('unknown')} unknown, in {time.time() - trial.started:.0f} s on "
                 f"{', '.join(trial.options.devices)}.")
    lines += [f"{s['name']}: no. {s['do'] or s['text']}" for s in gate + other][:6]
    return [line if len(line) < 400 else line[:400] + " ..." for line in lines]


def needed(step: dict[str, Any]) -> bool:
    return step["name"] in NEEDED or isinstance(step["data"], dict) and bool(
        step["data"].get("grave"))


def measured(trial: Trial) -> bool:
    """Were pages read, and was everything tried that wrong pages could come from?"""
    mended = cured(trial)
    answers = {s["name"]: "yes" if s in mended else s["answer"] for s in trial.steps if needed(s)}
    tried = trial.options.devices == ["soft"] or answers.keys() - set(NEEDED)
    return bool(tried) and answers.keys() >= set(NEEDED) and set(answers.values()) == {"yes"}


def document(trial: Trial) -> dict[str, Any]:
    return {"verdict": verdict(trial), "stopped": trial.stopped, "pretended": host.pretended(),
            "created_at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "steps": trial.steps, "devices": trial.options.devices,
            "software": host.software(), "json_version": 1}


# ---- plots and the page ------------------------------------------------------------------------


def plots(trial: Trial) -> Iterator[str]:
    rows = trial.facts.get("bytes", [])
    for batch in sorted({row["batch"] for row in rows}):
        of = [row for row in rows if row["batch"] == batch]
        vendor = trial.facts.get("vendor", {}).get("read_gbps", {})
        lines = {"engine": [row["gbps"] for row in of],
                 "memcpy": [row["memcpy_gbps"] for row in of],
                 "goal: ib_read_bw": [vendor.get(row["page_bytes"]) for row in of]}
        yield from plot.part({"title": f"Batches of {batch}: throughput", "x_label": "bytes of a "
                              "page", "y_label": "GB/s", "x": [row["page_bytes"] for row in of],
                              "lines": lines})
        yield from plot.part({"title": f"Batches of {batch}: latency of a call", "x_label":
                              "percentile", "y_label": "us", "x": ["p50", "p95", "p99", "p99.9"],
                              "lines": {f"{row['page_bytes'] // 1024} KiB": [
                                  row[p] for p in ("p50_us", "p95_us", "p99_us", "p999_us")]
                                  for row in of}})


def page(trial: Trial) -> Iterator[str]:
    yield "<!doctype html><meta charset=utf-8><title>peercachectl trial</title>"
    yield f"<style>{plot.STYLE} td {{ overflow-wrap: anywhere }}</style>"
    yield "<h1>peercachectl trial</h1>"
    first, *others = verdict(trial)
    yield f'<p class="{"not" if "NO" in first else "met"}">{text(first)}</p>'
    yield "<ul>" + "".join(f"<li>{text(line)}</li>" for line in others) + "</ul>"
    if trial.facts.get("claims"):
        yield "<h2>What we say, and what was measured</h2>"
        yield from plot.table(("claim", "here", "measured there", "ratio", "met", "what to do"),
                              trial.facts["claims"], 9)
    yield "<h2>Steps</h2>"
    yield "<table><tr><th>step<th>answer<th>seconds<th>found<th>what to do</tr>"
    for step in trial.steps:
        kind = {"yes": "met", "no": "not", "unknown": "modelled"}[step["answer"]]
        yield (f'<tr><td>{text(step["name"])}<td><span class="{kind}">{step["answer"]}</span>'
               f'<td class="n">{step["seconds"]}<td>{text(step["text"])}'
               f'<td>{text(step["do"])}</tr>')
    yield "</table>"
    yield from plots(trial)
    yield "<h2>The host</h2>"
    yield from plot.table((), [(k, v if v else "unknown") for k, v in host.software().items()], 2)
    for step in trial.steps:
        if step["data"]:
            yield (f"<details><summary>{text(step['name'])}: all that was measured</summary><pre>"
                   f"{text(json.dumps(step['data'], indent=1))}</pre></details>")


# ---- other names -------------------------------------------------------------------------------

ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|"
                     r"(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:]))")
SECRET = re.compile(r"(?i)((?:psk|secret|password|token|key)[\w.]*\s*[=:]\s*\"?)([^\s\",]+)")


class Names:
    """Replaces names, addresses and secrets, each by the same word everywhere."""

    def __init__(self, trial: Trial) -> None:
        self.given: dict[str, str] = {}
        names = [socket.gethostname(), socket.getfqdn(), trial.options.peer,
                 trial.options.address, getpass.getuser(), os.path.expanduser("~")]
        self.words = sorted({n for n in names if n and n not in ("localhost", "root", "/root", "/",
                                                                 "127.0.0.1")},
                            key=len, reverse=True)

    def word(self, kind: str, real: str) -> str:
        return self.given.setdefault(real, f"{kind}-{len(self.given) + 1}")

    def address(self, match: "re.Match[str]") -> str:
        try:
            known = ipaddress.ip_address(match[0])
        except ValueError:  # a GUID, or a MAC address
            return self.word("id", match[0]) if len(match[0]) > 11 else match[0]
        return match[0] if known.is_loopback or known.is_unspecified else self.word(
            "address", match[0])

    def clean(self, content: str) -> str:
        content = SECRET.sub(lambda m: m[1] + self.word("secret", m[2]), content)
        for word in self.words:
            # a file of the kernel keeps its name
            content = re.sub(rf"(?<!\w)(?<!/proc/)(?<!/sys/){re.escape(word)}(?!\w)",
                             lambda m: self.word("name", m[0]), content)
        return ADDRESS.sub(self.address, content)


def write(trial: Trial, base: str) -> list[str]:
    """Writes base.html and base.tar.gz. Returns their paths. Raises Refused."""
    made: list[str] = []
    try:
        with open(trial.path("trial.json"), "w", encoding="utf-8") as file:
            json.dump(document(trial), file, indent=1)
        with open(trial.path("report.html"), "w", encoding="utf-8") as file:
            file.write("\n".join(page(trial)) + "\n")
        for name in os.listdir(trial.folder):
            shorten(trial.path(name))
        if trial.options.anonymous:
            anonymise(trial)
        made.append(base + ".html")
        shutil.copyfile(trial.path("report.html"), base + ".html")
        made.append(base + ".tar.gz")
        with tarfile.open(base + ".tar.gz", "w:gz") as archive:
            archive.add(trial.folder, os.path.basename(base), filter=owned)
    except OSError as error:
        for path in made[1:]:  # half an archive is none
            if os.path.exists(path):
                os.remove(path)
        raise Refused(no_room(error, os.path.dirname(base))) from None
    return made


def shorten(path: str) -> None:
    """Leaves the end of a log that is too long."""
    if path.endswith(".log") and os.path.getsize(path) > LIMIT:
        with open(path, "rb+") as file:
            file.seek(-LIMIT, os.SEEK_END)
            end = file.read()
            file.seek(0)
            file.write(end)
            file.truncate()


def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def anonymise(trial: Trial) -> None:
    names = Names(trial)
    for name in sorted(os.listdir(trial.folder)):
        with open(trial.path(name), encoding="utf-8", errors="replace") as file:
            content = file.read()
        if name.endswith(".html"):
            content = html.unescape(content) if "<pre>" not in content else content
        with open(trial.path(name), "w", encoding="utf-8") as file:
            file.write(names.clean(content))


def no_room(error: OSError, folder: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (f"the disk of {folder} is full: the report is not complete; make room, or give "
                "another folder as --output")
    return f"{folder}: {error.strerror}: the report is not complete; give another --output"
