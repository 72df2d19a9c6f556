#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a served model gains: dialogues of several turns, sent to SGLang's servers, twice.

    perf/served.py --json FILE [--quick] [--peercache DIR]      servers of this machine
    perf/served.py --json FILE --url http://a:30000 --url http://b:30000 --no-cache http://c:30000

Without --url, served_here.py starts servers for the columns: no cache; L2 only; this engine;
PeerCache 0.8.4 (--peercache, as in perf/compare); SGLang's `file`. With
--url, servers that run are measured: the first URL gets the dialogues twice, each further one once,
so that what it has comes from the first. Their launch lines need --enable-cache-report; nothing may
be cached. Results are written as all benchmarks do it: `perf/report.py` draws them.

A user sends the history of its dialogue and a new question. The answer that enters the history is
the dialogue's, not the server's: so each run, on each server, sends the same prompts. All users
finish a turn before the next begins; --concurrency requests are sent at a time. The bound is what
an unbounded store would hit: in the first run the whole pages of the prompt of the turn before, in
later runs all whole pages before a prompt's last token.

--dialogues FILE: a JSON list like ShareGPT's, {"conversations": [{"from", "value"}...]}. Without
it, made dialogues have the lengths of ShareGPT as the paper of WildChat gives them (Zhao et al.,
2024, arXiv 2405.01470, table 1): a question has 94.46 tokens (deviation 626.39), an answer 348.45
(269.93), in 3.51 turns. Both are drawn from log-normal distributions with these moments; --turns is
fixed.

A run has phases: the stores are empty; the same host again; another host. In each phase all columns
are measured, turn by turn, and compared with no cache in that phase.
"""

import http.client
import json
import math
import random
import statistics
import sys
import threading
import time
import urllib.parse

import bench

QUESTION, ANSWER = (94.46, 626.39), (348.45, 269.93)  # tokens: mean and deviation
LIMIT_SECONDS = 600  # a request that takes longer has failed
SETTLE_SECONDS = 3   # between two runs: SGLang stores pages after it has answered
DISTURBED_AT = 2     # replies, after which an engine is killed
SOURCES = ("device", "host", "storage")
BASE = "no cache"
TTFT_GOAL, HIT_GOAL, LATE_GOAL = 0.25, 0.95, 1


class Target:
    """A server. Subclasses know how to reach it, and what it costs."""

    def connection(self):
        raise NotImplementedError

    def cpu(self):
        """CPU seconds that server and store have used; None: unknown."""
        return None, None

    def get(self, path):
        """The JSON answer to a GET."""
        connection = self.connection()
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


class Url(Target):
    """A server that runs somewhere."""

    def __init__(self, url):
        self.place = urllib.parse.urlsplit(url)
        if self.place.scheme not in ("http", "https") or not self.place.hostname:
            raise SystemExit(f"served: {url} is no URL of a server, such as http://10.0.0.1:30000")

    def connection(self):
        https = self.place.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        return kind(self.place.hostname, self.place.port, timeout=LIMIT_SECONDS)


def drawn(chance, moments, most):
    """A number of tokens from the log-normal distribution with this mean and deviation."""
    mean, deviation = moments
    sigma = math.log(1 + (deviation / mean) ** 2)
    return max(1, min(most, round(chance.lognormvariate(
        math.log(mean) - sigma / 2, math.sqrt(sigma)))))


def made(options):
    """Dialogues of random tokens; each is a list of prompts."""
    chance = random.Random(options.seed)
    dialogues = []
    for _ in range(options.users):
        history, prompts = [], []
        for _ in range(options.turns):
            most = options.prompt_max - len(history)
            if most < 1:
                break
            history += chance.choices(range(3, options.vocabulary),
                                      k=drawn(chance, QUESTION, most))
            prompts.append(list(history))
            history += chance.choices(range(3, options.vocabulary),
                                      k=drawn(chance, ANSWER, options.prompt_max))
        dialogues.append(prompts)
    return dialogues


def read(options, words):
    """Dialogues of a file. words: a function that makes tokens of a text, or None to send texts.

    A file that is not like ShareGPT's ends the program.
    """
    with open(options.dialogues, encoding="utf-8") as file:
        rows = json.load(file)
    dialogues = []
    for row in rows if isinstance(rows, list) else []:
        turns = row.get("conversations") if isinstance(row, dict) else None
        history, prompts = "", []
        for turn in turns if isinstance(turns, list) else []:
            if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
                break
            history += turn["value"] + "\n"
            if turn.get("from") in ("human", "user"):
                prompt = words(history) if words else history
                # A token of a text has about four characters.
                if len(prompt) > options.prompt_max * (1 if words else 4):
                    break
                prompts.append(prompt)
        if len(prompts) > 1:
            dialogues.append(prompts[:options.turns])
        if len(dialogues) == options.users:
            return dialogues
    if not dialogues:
        raise SystemExit(f"served: {options.dialogues} has no dialogue of two turns that begins "
                         f"within {options.prompt_max} tokens: see --help for its form")
    return dialogues


class Reply:
    """Attributes: ttft, in seconds; prompt: its tokens; device, host, storage: where they came
    from; output: the tokens of the answer."""

    def __init__(self, ttft, got):
        meta = got["meta_info"]
        self.ttft, self.prompt, self.output = ttft, meta["prompt_tokens"], got.get("output_ids")
        details = meta.get("cached_tokens_details") or {}
        for source in SOURCES:
            setattr(self, source, details.get(source) or 0)
        cached = self.device + self.host + self.storage
        if not 0 <= cached <= self.prompt or cached != meta["cached_tokens"]:
            raise RuntimeError(f"the server counts cached tokens as {details}, "
                               f"{meta['cached_tokens']} in all, of {self.prompt}: was it started "
                               "with --enable-cache-report?")


def ask(target, prompt, tokens):
    """Sends a prompt; returns the Reply."""
    body = {"text" if isinstance(prompt, str) else "input_ids": prompt, "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    connection = target.connection()
    try:
        start, ttft, got = time.perf_counter(), None, None
        connection.request("POST", "/generate", json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"/generate: {answer.status} {answer.read(500)}")
        for line in answer:
            text = line.decode().strip().removeprefix("data:").strip()
            if text.startswith("{"):
                ttft = ttft or time.perf_counter() - start
                got = json.loads(text)
        return Reply(ttft, got)
    finally:
        connection.close()


class Turn:
    """What all users' requests of one turn have measured. `bound`: tokens that a store without
    bounds would have hit; sum(source): tokens from there."""

    def __init__(self, replies, seconds, bound, cpu):
        self.replies, self.seconds, self.bound, self.cpu = replies, seconds, bound, cpu

    def sum(self, what):
        return sum(getattr(reply, what) for reply in self.replies)

    @property
    def hits(self):
        return sum(map(self.sum, SOURCES))

    @property
    def ttfts(self):
        return [reply.ttft for reply in self.replies]

    def per_request(self, which):
        """CPU seconds; None: unknown. which: 0 server, 1 store."""
        return self.cpu[which] and self.cpu[which] / len(self.replies)


def together(turns):
    """A run as one Turn."""
    cpu = tuple(None if None in part else sum(part) for part in zip(*(t.cpu for t in turns)))
    return Turn([reply for turn in turns for reply in turn.replies],
                sum(turn.seconds for turn in turns), sum(turn.bound for turn in turns), cpu)


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def sent(target, prompts, options, replied=lambda count: None):
    """Sends the prompts, --concurrency at a time. Returns the replies in their order. replied:
    called after each reply with the number of replies, once with each number."""
    waiting, replies, failed = list(enumerate(prompts)), {}, []
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if failed or not waiting:
                    return
                i, prompt = waiting.pop(0)
            try:
                reply = ask(target, prompt, options.output_tokens)
                with lock:
                    replies[i] = reply
                    count = len(replies)
                replied(count)
            except Exception as error:  # pylint: disable=broad-except
                failed.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(options.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"served: a request failed: {failed[0]!r}")
    return [replies[i] for i in range(len(prompts))]


class Store:
    """The servers of a column: the first gets the dialogues twice, the others once. `cache`: False
    if they have none; then all runs go to the first one."""

    def __init__(self, name, targets, page, cache=True):
        self.name, self.targets, self.page, self.cache = name, targets, page, cache

    def run(self, phase):
        """The store's column in this phase, and its server; None: it is not measured."""
        if not self.cache:
            return self.name, self.targets[0]
        if phase > len(self.targets):
            return None
        if phase == 0:
            return f"{self.name}, first run", self.targets[0]
        place = ", other host" if phase > 1 else ", same host" if len(self.targets) > 1 else ""
        return self.name + place, self.targets[phase - 1]


class Table:
    """The columns of the table.

    Attributes: phases: for each phase, lists of Turns by column. disturbed: pairs of replies by
    name, the second without cache.
    """

    def __init__(self, dialogues, options):
        self.dialogues, self.options = dialogues, options
        self.phases, self.disturbed = [], {}

    def measure(self, stores):
        """Measures all columns. The stores take turns, so that a machine that others use is as
        busy for each of them."""
        lengths = {}
        for phase in range(1 + max(len(store.targets) for store in stores)):
            runs = [(store, *run) for store in stores for run in [store.run(phase)] if run]
            columns = {name: [] for _, name, _ in runs}
            for turn in range(max(map(len, self.dialogues))):
                for store, name, target in runs:
                    print(f"phase {phase}, turn {turn}: {name}", file=sys.stderr)
                    columns[name].append(self.turn(turn, target, store.page, lengths, phase == 0))
            self.phases.append(columns)
            time.sleep(SETTLE_SECONDS)

    def turn(self, turn, target, page, lengths, first):
        """Sends one turn of all dialogues. lengths: tokens of prompts by user and turn. first: the
        store has none of their pages yet."""
        users = [user for user, prompts in enumerate(self.dialogues) if turn < len(prompts)]
        before, start = target.cpu(), time.perf_counter()
        replies = sent(target, [self.dialogues[user][turn] for user in users], self.options)
        seconds = time.perf_counter() - start
        cpu = tuple(None if a is None or b is None else b - a
                    for a, b in zip(before, target.cpu()))
        bound = 0
        for user, reply in zip(users, replies):
            known = lengths.get((user, turn - 1), 0) if first else reply.prompt
            bound += min(known, reply.prompt - 1) // page * page
            lengths[user, turn] = reply.prompt
        return Turn(replies, seconds, bound, cpu)

    def disturb(self, name, target, disturbance, base):
        """Sends the last prompts of all dialogues, more than DISTURBED_AT, and calls disturbance()
        at that reply. The server's own caches are empty. base: a server without cache."""
        last = [prompts[-1] for prompts in self.dialogues]
        without = sent(base, last, self.options)
        self.disturbed[name] = without, sent(
            target, last, self.options,
            lambda count: disturbance() if count == DISTURBED_AT else None)

    def columns(self):
        """Yields name, Turns and those without cache of the same phase, or None, by phase."""
        for columns in self.phases:
            for name, turns in columns.items():
                if name != BASE:
                    yield name, turns, columns.get(BASE)

    def result(self):
        result = bench.Result("served")
        for name, turns, without in self.columns():
            column, goal = together(turns), ours(name)
            if without:
                self.beside(result, name, column, together(without))
            if column.bound:
                result.figure(f"{name}: hits / those of an unbounded store",
                              column.hits / column.bound, "ratio",
                              goal=(">=", HIT_GOAL) if goal else None)
        for i, phase in enumerate(self.phases[1:]):
            if BASE in phase:  # what other batches change by themselves
                result.figure(f"{BASE}, run {i + 2}: answers that are those of its first run", same(
                    together(phase[BASE]).replies, together(self.phases[0][BASE]).replies), "ratio")
        for name, (without, replies) in self.disturbed.items():
            late = quantile([reply.ttft for reply in replies], .99) - \
                quantile([reply.ttft for reply in without], .99)
            result.figure(f"{name}: TTFT p99 - that without cache", late, "s",
                          goal=("<=", LATE_GOAL))
            result.figure(f"{name}: answers that are those without cache",
                          same(replies, without), "ratio", goal=(">=", 1))
        self.absolute(result)
        self.series(result)
        return result

    def beside(self, result, name, column, base):
        """Figures of a column beside no cache."""
        ratio = statistics.median(column.ttfts) / statistics.median(base.ttfts)
        result.figure(f"{name}: TTFT p50 / no cache", ratio, "ratio",
                      goal=("<=", TTFT_GOAL) if ours(name) else None)
        ratio = quantile(column.ttfts, .99) / quantile(base.ttfts, .99)
        result.figure(f"{name}: TTFT p99 / no cache", ratio, "ratio")
        result.figure(f"{name}: requests/s / no cache", base.seconds / column.seconds, "ratio")
        result.figure(f"{name}: answers that are those without cache",
                      same(column.replies, base.replies), "ratio")
        self.cost(result, name, column, base)

    @staticmethod
    def cost(result, name, column, base):
        """CPU time beside that without a cache."""
        if column.per_request(0) and base.per_request(0):
            used = column.per_request(0) + (column.per_request(1) or 0)
            result.figure(f"{name}: CPU of a request, server and store / no cache",
                          used / base.per_request(0), "ratio")
        if column.per_request(1):
            result.figure(f"{name}: CPU of a request, store's processes", 1e3 *
                          column.per_request(1), "ms")

    def absolute(self, result):
        """Figures of this machine."""
        columns = [(name, turns) for name, turns, _ in self.columns()]
        if BASE in self.phases[0]:
            columns.append((BASE, [turn for phase in self.phases for turn in phase[BASE]]))
        for name, turns in columns:
            column = together(turns)
            result.figure(f"{name}: TTFT p50", 1e3 * statistics.median(column.ttfts), "ms")
            result.figure(f"{name}: hit rate", column.hits / column.sum("prompt"), "ratio")
            if column.sum("storage"):
                result.figure(f"{name}: tokens from storage",
                              column.sum("storage") / column.seconds, "tokens/s")

    def series(self, result):
        """A plot of each row by turn; the lines are the columns."""
        shown = {name: turns for name, turns, _ in self.columns() if "first run" not in name}
        ceiling = next(iter(shown.values()))
        if BASE in self.phases[0]:
            shown[BASE] = [together(turns) for turns in
                           zip(*(phase[BASE] for phase in self.phases))]
        x = range(1, 1 + len(ceiling))
        rows = [
            ("hits", "Hit rate", "share of prompt tokens", lambda t: t.hits / t.sum("prompt")),
            ("ttft_p50", "Time to first token, p50", "ms",
             lambda t: 1e3 * statistics.median(t.ttfts)),
            ("ttft_p99", "Time to first token, p99", "ms", lambda t: 1e3 * quantile(t.ttfts, .99)),
            ("rate", "Requests", "requests/s", lambda t: len(t.replies) / t.seconds),
            ("storage", "Tokens from storage", "tokens/s",
             lambda t: t.sum("storage") / t.seconds or None),
            ("cpu", "CPU of server and store", "ms/request",
             lambda t: t.per_request(0) and 1e3 * (t.per_request(0) + (t.per_request(1) or 0))),
            ("store_cpu", "CPU of the store's processes", "ms/request",
             lambda t: t.per_request(1) and 1e3 * t.per_request(1))]
        for name, title, unit, value in rows:
            lines = {column: list(map(value, turns)) for column, turns in shown.items()}
            if name == "hits":
                lines["ceiling"] = [turn.bound / turn.sum("prompt") for turn in ceiling]
            lines = {column: points for column, points in lines.items()
                     if any(point is not None for point in points)}
            if lines:
                result.series(name, f"{title} by turn", "turn", unit, x, lines)
        for column, turns in shown.items():
            if together(turns).hits:
                result.series(f"sources of {column}", f"{column}: where prompt tokens came from",
                              "turn", "share of prompt tokens", x,
                              {source: [turn.sum(source) / turn.sum("prompt") for turn in turns]
                               for source in SOURCES})


def same(replies, others):
    """The share of replies with the same answer."""
    return sum(a.output == b.output for a, b in zip(replies, others)) / len(replies)


def ours(name):
    """True for a column that has goals: filled by another host, and not by another store."""
    return name in ("engine, other host", "served, other host")


def page_of(target, options):
    """The page size of a server, in tokens."""
    if options.page_size:
        return options.page_size
    page = target.get("/get_server_info").get("page_size")
    if not isinstance(page, int) or page < 1:
        raise SystemExit("served: /get_server_info names no page size: give --page-size")
    return page


def by_url(options):
    """Measures servers that run."""
    dialogues = read(options, None) if options.dialogues else made(options)
    stores = []
    if options.no_cache:
        target = Url(options.no_cache)
        stores.append(Store(BASE, [target], 1, cache=False))
    if not options.url:
        raise SystemExit("served: --no-cache needs a --url to compare with it")
    targets = list(map(Url, options.url))
    stores.append(Store("served", targets, page_of(targets[0], options)))
    table = Table(dialogues, options)
    table.measure(stores)
    return table


def add(parser):
    parser.add_argument("--url", action="append", default=[], help="a server that runs; repeat it")
    parser.add_argument("--no-cache", metavar="URL", help="a server without cache, to compare with")
    parser.add_argument("--peercache", metavar="DIR", help="where PeerCache 0.8.4 is installed")
    parser.add_argument("--only", metavar="NAME,...",
                        help="of none,l2,engine,peercache,file: only these columns")
    parser.add_argument("--dialogues", metavar="FILE", help="JSON like ShareGPT's")
    parser.add_argument("--seed", type=int, default=1, help="of made dialogues (1)")
    parser.add_argument("--vocabulary", type=int, default=1024, help="tokens of made dialogues")
    parser.add_argument("--users", type=int, default=8, help="dialogues (8); engines are "
                        f"killed if there are more than {DISTURBED_AT}")
    parser.add_argument("--turns", type=int, default=4, help="of a dialogue (4)")
    parser.add_argument("--concurrency", type=int, default=2, help="requests at a time (2)")
    parser.add_argument("--output-tokens", type=int, default=8, help="of an answer (8)")
    parser.add_argument("--prompt-max", type=int, default=2000,
                        help="a dialogue ends before its prompt has more tokens (2000)")
    parser.add_argument("--prefetch-threshold", type=int, default=64,
                        help="of servers started here: SGLang fetches no fewer tokens (64: a page; "
                        "SGLang's own is 256)")
    parser.add_argument("--page-size", type=int, help="of the servers, in tokens, if they do not "
                        "tell it")


def main():
    options = bench.parse(__doc__, add)
    for name in ("users", "turns", "concurrency", "output_tokens", "prompt_max"):
        if getattr(options, name) < 1:
            raise SystemExit(f"served: --{name.replace('_', '-')} must be at least 1")
    if options.vocabulary < 4:
        raise SystemExit("served: --vocabulary must be at least 4: tokens begin at 3")
    if options.url or options.no_cache:
        result = by_url(options).result()
    else:
        import served_here
        if options.quick:
            options.users, options.turns = min(options.users, 6), min(options.turns, 3)
        result = served_here.measured(options).result()
    result.write(options.json)


if __name__ == "__main__":
    main()
