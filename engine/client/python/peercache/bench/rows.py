# SPDX-License-Identifier: Apache-2.0
"""Turns results of points into rows: the lines of tables, CSV and JSON. Any thread.

A table is pairs of a title and the name of a column.
"""

from typing import Any, Iterator, Mapping, Sequence

from peercache.bench.plot import amount

COLUMNS = ("op", "path", "layout", "page_bytes", "batch", "processes", "threads", "readers",
           "writers", "seconds", "calls", "pages", "misses", "wrong", "hit_ratio", "pages_per_s",
           "tokens_per_s", "gb_per_s", "p50_us", "p95_us", "p99_us", "p999_us", "max_us",
           "missed_calls", "missed_p50_us", "missed_p99_us", "missed_max_us", "pages_local",
           "pages_remote", "errors", "note", "ports")
SHARES = (("p50_us", .5), ("p95_us", .95), ("p99_us", .99), ("p999_us", .999))
# What must be equal for two rows to be compared; see key_of().
SAME = ("op", "path", "layout", "page_bytes", "batch", "processes", "threads", "readers",
        "writers")
TABLE = (("op", "op"), ("path", "path"), ("page bytes", "page_bytes"), ("threads", "threads"),
         ("batch", "batch"), ("pages/s", "pages_per_s"),
         ("tokens/s", "tokens_per_s"), ("GB/s", "gb_per_s"), ("p50 us", "p50_us"),
         ("p95 us", "p95_us"), ("p99 us", "p99_us"), ("p99.9 us", "p999_us"),
         ("max us", "max_us"), ("hit %", "hit_ratio"), ("calls with misses", "missed_calls"),
         ("their p50 us", "missed_p50_us"), ("their p99 us", "missed_p99_us"),
         ("errors, warm-up too", "errors"), ("note", "note"))
# Columns of a table that only appear if their values differ, or if one is not zero.
DIFFERING = ("path", "page_bytes")
NOT_ZERO = ("tokens_per_s", "missed_calls", "missed_p50_us", "missed_p99_us", "errors", "note",
            "failed", "cpu_ms", "store_cpu_ms")
PERCENT = ("hit_ratio", "bound_ratio")


def row(op: str, result: Mapping[str, Any], **what: Any) -> dict[str, Any]:
    """The row of one op of a point.

    Rates are hits over the time from the first measured call to the last. result: as
    Clients.run() returns it. what: layout, page_bytes, batch, processes, tokens_per_page, ports,
    note; readers and writers of a process, which all run while the op is measured.
    """
    seconds, hits = result["seconds"], result["hits"]
    rate = hits / seconds if seconds else 0.0
    counted = dict(result["counted"])
    local, remote = counted.pop("hits_local", 0), counted.pop("hits_remote", 0)
    counted.pop("bytes_staged", 0)
    asked = hits + result["misses"]
    got = {"path": "store", **what, "op": op, "threads": result["threads"],
           "seconds": round(seconds, 3), "calls": result["calls"], "pages": hits,
           "misses": result["misses"], "wrong": result["wrong"],
           "hit_ratio": hits / asked if asked else 0.0, "pages_per_s": rate,
           "tokens_per_s": rate * what["tokens_per_page"],
           "gb_per_s": 0.0 if op == "exists" else rate * what["page_bytes"] / 1e9,
           **{name: result["hit"].us(share) for name, share in SHARES},
           "max_us": result["hit"].max_ns / 1e3, "missed_calls": result["missed"].total,
           "missed_p50_us": result["missed"].us(.5), "missed_p99_us": result["missed"].us(.99),
           "missed_max_us": result["missed"].max_ns / 1e3,
           "pages_local": local, "pages_remote": remote,
           "errors": " ".join(f"{name}={count}" for name, count in sorted(counted.items()))}
    return {name: got.get(name, "") for name in COLUMNS}


def mark_peak(rows: Sequence[dict[str, Any]]) -> None:
    """Notes the row of a sweep with the highest rate."""
    rates = [r["pages_per_s"] for r in rows]
    if len(rows) > 1 and max(rates) > 0:
        best = rows[rates.index(max(rates))]
        best["note"] = f"{best['note']} peak".strip()


def is_latency(one: Mapping[str, Any]) -> bool:
    """True for a row that measures latency, and is no point of a sweep."""
    return "latency" in one["note"]


def key_of(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the row measured: rows of two runs are compared if this is equal."""
    return (is_latency(one), *(one[name] for name in SAME))


def cell(name: str, value: Any) -> str:
    """A value of a row as a table has it."""
    if value is None:
        return "-" if name in PERCENT else "unknown"
    if name in PERCENT:
        return f"{value * 100:.2f}"
    return amount(value) if isinstance(value, (int, float)) else str(value)


def columns(rows: Sequence[Mapping[str, Any]],
            of: Sequence[tuple[str, str]] = TABLE) -> list[tuple[str, str]]:
    """The columns of a table that is shown of these rows."""
    return [(title, name) for title, name in of
            if not (name in DIFFERING and len({r[name] for r in rows}) < 2
                    or name in NOT_ZERO and not any(r[name] for r in rows))]


def table(rows: Sequence[Mapping[str, Any]],
          of: Sequence[tuple[str, str]] = TABLE) -> Iterator[str]:
    """The lines of a table for a terminal."""
    shown = columns(rows, of)
    cells = [[title for title, _ in shown]]
    cells += [[cell(name, r[name]) for _, name in shown] for r in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    for line in cells:
        yield "  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                        for i, (text, width) in enumerate(zip(line, widths))).rstrip()
