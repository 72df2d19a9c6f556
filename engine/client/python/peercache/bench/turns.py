# SPDX-License-Identifier: Apache-2.0
"""Dialogues that are sent to servers of SGLang turn by turn, and what that measures. Main thread,
which starts --concurrency threads for each turn.

A run has phases: the stores are empty; the same host again; each other host. In each phase all
columns are measured turn by turn, and compared with no cache in that phase. All users finish a turn
before the next begins. The bound is what an unbounded store would hit: in the first phase the whole
pages of the prompt of the turn before, later all whole pages before a prompt's last token.
"""

import argparse
import statistics
import threading
import time
from collections import Counter
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from peercache.bench.dialogues import Prompt
from peercache.bench.server import SOURCES, Failed, Reply, Server, ask

BASE = "no cache"
STOPPED_SECONDS = 5.0  # after a stop, for requests in flight


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Turn:
    """What requests of one turn have measured, at least one of them answered.

    Attributes: replies: by user. failed: the number of requests without an answer, by cause.
    seconds: from the first request to the last reply. bound: tokens that an unbounded store would
    have hit. cpu: seconds of server and store; None: unknown.
    """

    def __init__(self, replies: Mapping[Any, Reply], failed: Mapping[str, int], seconds: float,
                 bound: int, cpu: tuple[Optional[float], Optional[float]]) -> None:
        self.replies, self.failed, self.seconds = dict(replies), Counter(failed), seconds
        self.bound, self.cpu = bound, cpu

    def sum(self, what: str) -> Optional[int]:
        """The sum of an attribute of the replies; None: a server does not tell it."""
        values = [getattr(reply, what) for reply in self.replies.values()]
        return None if None in values else sum(values)

    def share(self, what: str) -> Optional[float]:
        """The share of prompt tokens for which an attribute counts; None: unknown."""
        part = self.sum(what)
        return None if part is None else part / max(1, self.sum("prompt") or 0)

    @property
    def bound_ratio(self) -> Optional[float]:
        """Hits / bound; None: an unbounded store would hit nothing."""
        return (self.sum("hits") or 0) / self.bound if self.bound else None

    def ttft(self, share: float) -> float:
        """Seconds to the first token: the median or another quantile."""
        ttfts = [reply.ttft for reply in self.replies.values()]
        return statistics.median(ttfts) if share == .5 else quantile(ttfts, share)

    def per_request(self, which: int) -> Optional[float]:
        """CPU seconds; None: unknown. which: 0 server, 1 store."""
        used = self.cpu[which]
        return used and used / len(self.replies)

    def row(self, **what: Any) -> dict[str, Any]:
        """The row of the report. what: run, phase, turn, note."""
        cpu = [used and 1e3 * used for used in map(self.per_request, (0, 1))]
        return {"requests": len(self.replies) + sum(self.failed.values()),
                "failed": sum(self.failed.values()), "seconds": round(self.seconds, 3),
                "prompt_tokens": self.sum("prompt"), "hit_tokens": self.sum("hits"),
                **{source + "_tokens": self.sum(source) for source in SOURCES},
                "bound_tokens": self.bound, "hit_ratio": self.share("hits"),
                "bound_ratio": self.bound_ratio, "ttft_p50_ms": 1e3 * self.ttft(.5),
                "ttft_p99_ms": 1e3 * self.ttft(.99),
                "requests_per_s": len(self.replies) / self.seconds, "cpu_ms": cpu[0],
                "store_cpu_ms": cpu[1], **what}


def together(turns: Sequence[Turn]) -> Turn:
    """Several turns as one. Users of the replies are then (index of the turn, user)."""
    cpu = [None if None in part else sum(part) for part in zip(*(turn.cpu for turn in turns))]
    return Turn({(i, user): reply for i, turn in enumerate(turns)
                 for user, reply in turn.replies.items()},
                sum((turn.failed for turn in turns), Counter()),
                sum(turn.seconds for turn in turns), sum(turn.bound for turn in turns),
                (cpu[0], cpu[1]))


def same(replies: Mapping[Any, Reply], others: Mapping[Any, Reply]) -> float:
    """The share of equal answers to the same prompts."""
    pairs = [reply.output == others[user].output
             for user, reply in replies.items() if user in others]
    return sum(pairs) / max(1, len(pairs))


def label(name: str, phase: int) -> str:
    """The name of a column's run: that of no cache has a number, because each phase has one."""
    return f"{name}, run {phase + 1}" if name == BASE else name


class Sending:
    """Prompts that are sent, --concurrency at a time.

    Attributes: replies: by user. failed: the number of requests without an answer, by cause; first:
    the text of the first one of each. stop(): true to send no more. replied(count): called after
    each reply with the number of replies, once with each number.
    """

    def __init__(self, server: Server, prompts: Mapping[int, Prompt], options: argparse.Namespace,
                 stop: Callable[[], bool] = lambda: False,
                 replied: Callable[[int], None] = lambda count: None) -> None:
        self.server, self.options, self.stop, self.replied = server, options, stop, replied
        self.waiting = list(prompts.items())
        self.replies: dict[int, Reply] = {}
        self.failed: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.lock = threading.Lock()
        self.start = self.last = time.perf_counter()

    def work(self) -> None:
        """A thread: sends one prompt after the other."""
        while not self.stop():
            with self.lock:
                if not self.waiting:
                    return
                user, prompt = self.waiting.pop(0)
            try:
                reply = ask(self.server, prompt, self.options.output_tokens, self.options.timeout)
            except Exception as error:  # pylint: disable=broad-except
                cause, text = type(error).__name__, f"{type(error).__name__}: {error}"
                if isinstance(error, Failed):
                    cause, text = error.cause, str(error)
                with self.lock:
                    self.failed[cause] += 1
                    self.first.setdefault(cause, text)
                continue
            with self.lock:
                self.replies[user] = reply
                self.last = time.perf_counter()
                count = len(self.replies)
            self.replied(count)

    def run(self, progress: Callable[[int, int], None] = lambda replies, failed: None) -> None:
        """Returns when all prompts are answered or have failed; after a stop, STOPPED_SECONDS
        later at the latest. progress: called now and then with the number of replies and failures.
        """
        threads = [threading.Thread(target=self.work, daemon=True)
                   for _ in range(min(self.options.concurrency, len(self.waiting)))]
        for thread in threads:
            thread.start()
        end: Optional[float] = None
        while threads := [thread for thread in threads if thread.is_alive()]:
            threads[0].join(0.1)
            if self.stop() and end is None:
                end = time.monotonic() + STOPPED_SECONDS
            if end is not None and time.monotonic() > end:
                break
            progress(len(self.replies), sum(self.failed.values()))


class Store:
    """The servers of a column: the first gets the dialogues twice, the others once. `cache`: False
    if they have none; then all runs go to the first one. page: tokens."""

    def __init__(self, name: str, servers: Sequence[Server], page: int, cache: bool = True) -> None:
        self.name, self.servers, self.page, self.cache = name, servers, page, cache

    def run(self, phase: int) -> Optional[tuple[str, Server]]:
        """The store's column in this phase, and its server; None: it is not measured."""
        if not self.cache:
            return self.name, self.servers[0]
        if phase > len(self.servers):
            return None
        if phase == 0:
            return f"{self.name}, first run", self.servers[0]
        place = ", other host" if phase > 1 else ", same host" if len(self.servers) > 1 else ""
        more = f" {phase - 1}" if len(self.servers) > 2 and phase > 1 else ""
        return self.name + place + more, self.servers[phase - 1]


class Table:
    """The columns of the table.

    Attributes: phases: for each phase, lists of Turns by column. disturbed: pairs of Turns by name,
    the second without cache. first: the text of the first failure of each cause.
    stop(): true to end early. told(row): called after each turn. progress(what, replies, failed).
    """

    def __init__(self, dialogues: Sequence[Sequence[Prompt]], options: argparse.Namespace,
                 stop: Callable[[], bool] = lambda: False,
                 told: Callable[[dict[str, Any]], None] = lambda row: None,
                 progress: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self.dialogues, self.options = dialogues, options
        self.stop, self.told, self.progress = stop, told, progress
        self.phases: list[dict[str, list[Turn]]] = []
        self.disturbed: dict[str, tuple[Turn, Turn]] = {}
        self.lengths: dict[tuple[int, int], int] = {}  # tokens of prompts by user and turn
        self.first: dict[str, str] = {}

    def measure(self, stores: Sequence[Store]) -> None:
        """Measures all columns, or until a stop. The stores take turns, so that a machine that
        others use is as busy for each of them. Raises RuntimeError if a turn has no answer."""
        for phase in range(1 + max(len(store.servers) for store in stores)):
            runs = [(store, *run) for store in stores for run in [store.run(phase)] if run]
            columns: dict[str, list[Turn]] = {name: [] for _, name, _ in runs}
            self.phases.append(columns)
            for turn in range(max(map(len, self.dialogues))):
                for store, name, server in runs:
                    if self.stop():
                        return
                    got = self.turn(turn, server, store.page, phase == 0, name)
                    if got:
                        columns[name].append(got)
                        self.told(got.row(run=label(name, phase), phase=phase, turn=turn + 1,
                                          note="interrupted" if self.stop() else ""))
            self.settle()

    def settle(self) -> None:
        """Waits between two runs: SGLang stores pages after it has answered."""
        end = time.monotonic() + self.options.settle
        while time.monotonic() < end and not self.stop():
            time.sleep(min(0.1, self.options.settle))

    def turn(self, turn: int, server: Server, page: int, first: bool, name: str) -> Optional[Turn]:
        """Sends one turn of all dialogues. first: the store has none of their pages yet. None: a
        stop left nothing. Raises RuntimeError if no request was answered."""
        prompts = {user: prompts[turn] for user, prompts in enumerate(self.dialogues)
                   if turn < len(prompts)}
        before = server.cpu()
        sending = Sending(server, prompts, self.options, self.stop)
        sending.run(lambda replies, failed: self.progress(
            f"{name}, turn {turn + 1} of {len(prompts)} users", replies, failed))
        got = self.taken(sending, before)
        if not got:
            if not self.stop():
                raise RuntimeError(f"{name}: no request of turn {turn + 1} was answered by "
                                   f"{server.name}: " + "; ".join(sending.first.values()))
            return None
        for user, reply in got.replies.items():
            known = self.lengths.get((user, turn - 1), 0) if first else reply.prompt
            got.bound += min(known, reply.prompt - 1) // page * page
            self.lengths[user, turn] = reply.prompt
        return got

    def taken(self, sending: Sending, before: tuple[Optional[float], Optional[float]]
              ) -> Optional[Turn]:
        """What was sent, as a Turn without a bound. before: CPU time; None: no reply came."""
        for cause, text in sending.first.items():
            self.first.setdefault(cause, text)
        with sending.lock:
            replies, failed = dict(sending.replies), Counter(sending.failed)
        cpu = [None if a is None or b is None else b - a
               for a, b in zip(before, sending.server.cpu())]
        return Turn(replies, failed, sending.last - sending.start, 0,
                    (cpu[0], cpu[1])) if replies else None

    def disturb(self, name: str, server: Server, disturbance: Callable[[], None], base: Server,
                at: int) -> None:
        """Sends the last prompts of all dialogues, more than `at`, and calls disturbance() at that
        reply. The server's own caches are empty. base: a server without cache."""
        last = {user: prompts[-1] for user, prompts in enumerate(self.dialogues)}

        def replied(count: int) -> None:
            if count == at:
                disturbance()

        got = []
        for sending in (Sending(base, last, self.options),
                        Sending(server, last, self.options, replied=replied)):
            sending.run()
            turn = self.taken(sending, (None, None))
            if not turn:
                raise RuntimeError(f"{name}: no request was answered: {sending.first}")
            got.append(turn)
        self.disturbed[name] = got[0], got[1]

    def columns(self) -> Iterator[tuple[str, list[Turn], Optional[list[Turn]]]]:
        """Yields name, Turns and those without cache of the same phase, or None, by phase."""
        for columns in self.phases:
            for name, turns in columns.items():
                if name != BASE and turns:
                    yield name, turns, columns.get(BASE) or None

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the report: those of each run's turns, then one of all of its turns."""
        found = []
        for phase, columns in enumerate(self.phases):
            for column, turns in columns.items():
                name = label(column, phase)
                numbered = [turn.row(run=name, phase=phase, turn=i, note="")
                            for i, turn in enumerate(turns, 1)]
                if turns:
                    numbered.append(together(turns).row(run=name, phase=phase, turn="all", note=""))
                found += numbered
        return found

    def failed(self) -> Counter[str]:
        """The number of requests without an answer, by cause."""
        turns = [turn for columns in self.phases for part in columns.values() for turn in part]
        turns += [turn for pair in self.disturbed.values() for turn in pair]
        return sum((turn.failed for turn in turns), Counter())


def beside(name: str, column: Turn, base: Turn) -> Iterator[tuple[str, float, str]]:
    """Figures of a column beside no cache."""
    yield f"{name}: TTFT p50 / {BASE}", column.ttft(.5) / base.ttft(.5), "ratio"
    yield f"{name}: TTFT p99 / {BASE}", column.ttft(.99) / base.ttft(.99), "ratio"
    yield (f"{name}: requests/s / {BASE}", len(column.replies) / column.seconds /
           (len(base.replies) / base.seconds), "ratio")
    yield f"{name}: answers that are those without cache", same(column.replies, base.replies), \
        "ratio"
    used, without = column.per_request(0), base.per_request(0)
    if used and without:
        used += column.per_request(1) or 0
        yield f"{name}: CPU of a request, server and store / {BASE}", used / without, "ratio"
    if column.per_request(1):
        yield f"{name}: CPU of a request, store's processes", \
            1e3 * (column.per_request(1) or 0), "ms"


def figures(table: Table) -> Iterator[tuple[str, float, str]]:
    """Yields name, value and unit of the figures of all columns."""
    for name, turns, without in table.columns():
        column = together(turns)
        if without:
            yield from beside(name, column, together(without))
        if column.bound_ratio is not None:
            yield f"{name}: hits / those of an unbounded store", column.bound_ratio, "ratio"
    for i, phase in enumerate(table.phases[1:]):
        if phase.get(BASE):  # what other batches change by themselves
            yield (f"{label(BASE, i + 1)}: answers that are those of its first run",
                   same(together(phase[BASE]).replies, together(table.phases[0][BASE]).replies),
                   "ratio")
    for name, (without, got) in table.disturbed.items():
        yield f"{name}: TTFT p99 - that without cache", got.ttft(.99) - without.ttft(.99), "s"
        yield f"{name}: answers that are those without cache", same(
            got.replies, without.replies), "ratio"
    columns = [(name, turns) for name, turns, _ in table.columns()]
    base = [turn for phase in table.phases for turn in phase.get(BASE, ())]
    for name, turns in columns + ([(BASE, base)] if base else []):
        column = together(turns)
        yield f"{name}: TTFT p50", 1e3 * column.ttft(.5), "ms"
        yield f"{name}: hit rate", column.share("hits") or 0.0, "ratio"
        if column.sum("storage"):
            yield (f"{name}: tokens from storage", (column.sum("storage") or 0) / column.seconds,
                   "tokens/s")


PLOTS: tuple[tuple[str, str, str, Callable[[Turn], Optional[float]]], ...] = (
    ("hits", "Hit rate", "share of prompt tokens", lambda t: t.share("hits")),
    ("ttft_p50", "Time to first token, p50", "ms", lambda t: 1e3 * t.ttft(.5)),
    ("ttft_p99", "Time to first token, p99", "ms", lambda t: 1e3 * t.ttft(.99)),
    ("rate", "Requests", "requests/s", lambda t: len(t.replies) / t.seconds),
    ("storage", "Tokens from storage", "tokens/s",
     lambda t: (t.sum("storage") or 0) / t.seconds or None),
    ("cpu", "CPU of server and store", "ms/request",
     lambda t: t.per_request(0) and 1e3 * ((t.per_request(0) or 0) + (t.per_request(1) or 0))),
    ("store_cpu", "CPU of the store's processes", "ms/request",
     lambda t: t.per_request(1) and 1e3 * (t.per_request(1) or 0)))


def series(table: Table) -> Iterator[dict[str, Any]]:
    """Plots by turn, whose lines are the columns; then where prompt tokens came from."""
    shown = {name: turns for name, turns, _ in table.columns() if "first run" not in name} or \
        {name: turns for name, turns, _ in table.columns()}
    if not shown:
        return
    ceiling = max(shown.values(), key=len)
    base = [phase[BASE] for phase in table.phases if phase.get(BASE)]
    if base:
        shown[BASE] = [together(turns) for turns in zip(*base)]
    x = list(range(1, 1 + len(ceiling)))

    def line(points: Sequence[Optional[float]]) -> list[Optional[float]]:
        return [*points, *[None] * (len(x) - len(points))][:len(x)]

    for name, title, unit, value in PLOTS:
        lines = {column: line([value(turn) for turn in turns]) for column, turns in shown.items()}
        if name == "hits":
            lines["ceiling"] = line([turn.bound / max(1, turn.sum("prompt") or 0)
                                     for turn in ceiling])
        lines = {column: points for column, points in lines.items()
                 if any(point is not None for point in points)}
        if lines:
            yield {"name": name, "title": f"{title} by turn", "x_label": "turn", "y_label": unit,
                   "x": x, "lines": lines}
    for column, turns in shown.items():
        if together(turns).sum("hits") and together(turns).sum("storage") is not None:
            yield {"name": f"sources of {column}",
                   "title": f"{column}: where prompt tokens came from", "x_label": "turn",
                   "y_label": "share of prompt tokens", "x": x,
                   "lines": {source: line([turn.share(source) for turn in turns])
                             for source in SOURCES}}
