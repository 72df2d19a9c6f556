# SPDX-License-Identifier: Apache-2.0
"""What this project says of itself, and whether a trial found it. Any thread.

The only list of these figures: both first pages and perf/README.md quote it, and a test compares.
"""

from typing import Any, Callable, Iterator, NamedTuple, Optional

from peercache.trial.frame import Answer, Trial

NEAR = 0.8  # a measured figure this near to the claim, or better, meets it


class Claim(NamedTuple):
    """Attributes:
        text: the claim.
        values: the figure here, modelled or over software NICs; one or both ends of its range.
        lower: lower is better.
        quotes: (file, text with the values in it).
        measured: the figure there, of Trial.facts; None: not measured.
        do: where it is not met.
    """
    text: str
    values: tuple[float, ...]
    lower: bool
    quotes: tuple[tuple[str, str], ...]
    measured: Callable[[dict[str, Any]], Optional[float]]
    do: str


def row(facts: dict[str, Any], page: int, batch: int) -> Any:
    return next((r for r in facts.get("bytes", ()) if (r["page_bytes"], r["batch"]) == (
        page, batch)), None)


def of_vendor(facts: dict[str, Any], ours: Any) -> Optional[float]:
    """The rate of a row / that of ib_read_bw on all ports."""
    theirs = facts.get("vendor", {}).get("read_gbps", {}).get(131072)
    return ours["gbps"] / theirs / facts["rails"] if ours and theirs else None


def small_pages(facts: dict[str, Any]) -> Optional[float]:
    found = row(facts, 4096, 128)
    return found["pages_per_second"] / 1e6 / facts["rails"] if found else None


def lone_batch(facts: dict[str, Any]) -> Optional[float]:
    found, card = row(facts, 131072, 32), facts.get("card", {})
    if not found or not card.get("rtt_ns") or not card.get("gbps"):
        return None
    least_us = card["rtt_ns"] / 1e3 + 32 * 131072 * 8e-3 / card["gbps"] / facts["rails"]
    return found["p50_us"] / least_us


PERF, FIRST, ZH = "perf/README.md", "README.md", ".github/README.zh.md"
CLAIMS = (
    Claim("128 KiB in batches of 32 / what the ports carry (there: ib_read_bw)", (.95, .97), False,
          ((PERF, "32, charged: rate / ceiling (modelled) | {0:.2f} to {1:.2f};"),),
          lambda facts: of_vendor(facts, row(facts, 131072, 32)),
          "isolate the poll cores, put pools on huge pages, raise rail.qps_per_peer"),
    Claim("the same, 4 processes together", (.92, .98), False,
          ((PERF, "8 runs each) | {0:.2f} to {1:.2f}, median"),),
          lambda facts: of_vendor(facts, facts.get("processes", {}).get(4)),
          "give the processes cores of their own, isolate the poll cores"),
    Claim("one port: M pages of 4 KiB a second, stored anywhere", (8.5, 9.2), False,
          ((PERF, "4 KiB, charged: in sequence; anywhere | 11.6; {0} to {1} M pages/s"),),
          small_pages, "raise rail.qps_per_peer; give rail.cores cores of the NIC's NUMA node"),
    Claim("a batch of 32 x 128 KiB / (round trip + bytes at the port's rate)", (1.66,), True,
          ((PERF, "time / (round trip + bytes / ceiling), by tail; by lease | {0:.2f};"),),
          lone_batch, "set rail.validate=lease, rail.polling=busy"),
    Claim("an engine is killed: s to the first hit of another host", (.222,), True,
          ((PERF, "first hit of a client of another host; last miss; pages lost | {ms:.0f} ms;"),
           (FIRST, "serves them to another host after {0:.1f} s"),
           (ZH, "{0:.1f} 秒后即可向另一台主机提供这些页")),
          lambda facts: facts.get("restart_s"), "the NIC registers its memory again: put pools on "
          "huge pages"),
    Claim("wrong pages", (0,), True, ((PERF, "No page was wrong."),),
          lambda facts: facts.get("churn", {}).get("wrong"), "send us the report"),
    Claim("reads of 128 KiB / those of Mooncake Store", (5.9, 10.7), False,
          ((PERF, "get right after exists | {0} and {1} |"),
           (FIRST, "{0} and {1} times as fast as Mooncake Store"),
           (ZH, "Mooncake Store 0.3.13 的 {0} 倍和 {1} 倍")), lambda facts: None, ""),
    Claim("its CPU time for a GB read / that of Mooncake Store", (.052, .077), True,
          ((PERF, "CPU without the ports | {1} and {0} |"),
           (FIRST, "in {percent[0]} to {percent[1]}% of its CPU time"),
           (ZH, "CPU 时间仅为它的 {percent[0]}% 到 {percent[1]}%")), lambda facts: None, ""),
    Claim("time to the first token on another host / without a cache", (.10, .12), True,
          ((PERF, "TTFT p50 on the other host was {0:.2f} to {1:.2f}"),
           (FIRST, "time to first token {percent[0]} to {percent[1]}% of that"),
           (ZH, "TTFT 是无缓存时的 {percent[0]}% 到 {percent[1]}%")),
          lambda facts: facts.get("served", {}).get("ttft"), "see the hits"),
    Claim("hits on another host / those possible", (1.,), False,
          ((PERF, "| 0.23; 0.23 | {0:.2f}; **{0:.2f}** (>= 0.95) |"),
           (FIRST, "{percent[0]}% of the possible hits"), (ZH, "理论上限的 {percent[0]}%")),
          lambda facts: facts.get("served", {}).get("hits"), "give a larger --pool-bytes"),
)


def quote(claim: Claim, text: str) -> str:
    """A quote with the values of its claim."""
    return text.format(*claim.values, ms=claim.values[0] * 1000,
                       percent=[round(value * 100) for value in claim.values])


def judge(trial: Trial) -> Iterator[tuple[str, Answer]]:
    """A step for each claim."""
    trial.facts["rails"] = max(1, len(trial.options.devices) // (1 if trial.options.peer else 2))
    trial.facts["claims"] = table = []
    for claim in CLAIMS:
        said = claim.values[-1 if claim.lower else 0]
        found = claim.measured(trial.facts)
        ratio = found / said if found is not None and said else None
        here = " to ".join(f"{value:g}" for value in claim.values)
        if found is None:
            answer = Answer("unknown", f"here {here}; not measured there")
        else:
            good = found <= said / NEAR if claim.lower else found >= said * NEAR
            text = f"here {here}, there {found:.3g}" + (f": {ratio:.2f}" if ratio else "")
            answer = Answer("yes" if good else "no", text, "" if good else claim.do)
            if trial.facts["software_port"] and not good:
                answer = Answer("unknown", f"{text}; the port is software")
        table.append([claim.text, here, "not measured" if found is None else f"{found:.3g}",
                      "" if ratio is None else f"{ratio:.2f}", answer.answer, answer.do])
        yield f"claim: {claim.text}", answer
