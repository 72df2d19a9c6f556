# SPDX-License-Identifier: Apache-2.0
"""A strict reader of the Prometheus text format, version 0.0.4.

parse(text) returns {family: Family}, and raises Invalid. It accepts less than Prometheus does:
every family has a help text and a type before its samples, and no family occurs twice.
"""

import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|\+Inf")
ENDS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count"),
        "counter": ("",), "gauge": ("",)}


class Invalid(Exception):
    pass


class Family:
    def __init__(self, name, help_text):
        self.name, self.help, self.type = name, help_text, None
        self.samples = {}  # (sample name, ((label, value), ...)): value


def require(condition, *what):
    if not condition:
        raise Invalid(" ".join(map(str, what)))


def labels_of(text, line):
    found, at = [], 0
    while at < len(text):
        match = LABEL.match(text, at)
        require(match, "labels:", line)
        value = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), match[2])
        found.append((match[1], value))
        at = match.end()
        require(match[3] == "" or at < len(text), "a comma at the end of the labels:", line)
    require(len({name for name, _ in found}) == len(found), "a label twice:", line)
    return tuple(sorted(found))


def take_sample(family, line):
    match = SAMPLE.fullmatch(line)
    require(match, "not a sample:", line)
    require(family and family.type, "a sample without a type:", line)
    require(match[1] in [family.name + end for end in ENDS[family.type]],
            "not of the family", family.name, ":", line)
    require(NUMBER.fullmatch(match[3]), "not a number:", line)
    key = match[1], labels_of(match[2] or "", line)
    require(match[2] != "", "empty braces:", line)
    require(key not in family.samples, "twice:", line)
    family.samples[key] = float(match[3])


def check_histogram(family):
    series = {}
    for (name, labels), value in family.samples.items():
        own = tuple(label for label in labels if label[0] != "le")
        require(name.endswith("_bucket") == (own != labels), "label le:", name, labels)
        series.setdefault(own, {})[name[len(family.name):], dict(labels).get("le")] = value
    for own, values in series.items():
        buckets = [(float(le), n) for (end, le), n in values.items() if end == "_bucket"]
        require(buckets == sorted(buckets), "buckets in order:", family.name, own)
        require(buckets and buckets[-1][0] == math.inf, "no +Inf:", family.name, own)
        require(all(a[1] <= b[1] for a, b in zip(buckets, buckets[1:])),
                "not cumulative:", family.name, own)
        require(("_count", None) in values and ("_sum", None) in values,
                "no count or sum:", family.name, own)
        require(values["_count", None] == buckets[-1][1], "count is not +Inf:", family.name, own)
        require(values["_sum", None] >= 0, "a negative sum:", family.name, own)


def parse(text):
    families, family = {}, None
    require(text.endswith("\n"), "the last line has no end")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            match = re.fullmatch(rf"# HELP ({NAME}) ((?:[^\\]|\\[\\n])+)", line)
            require(match, "not a help line:", line)
            require(match[1] not in families, "the family is there already:", line)
            require(family is None or family.type, "no type:", family and family.name)
            family = families[match[1]] = Family(match[1], match[2])
        elif line.startswith("#"):
            match = re.fullmatch(rf"# TYPE ({NAME}) ({'|'.join(ENDS)})", line)
            require(match and family and match[1] == family.name and not family.type and
                    not family.samples, "not the type of the family before:", line)
            family.type = match[2]
        else:
            take_sample(family, line)
    samples = [name for f in families.values() for name, _ in f.samples]
    for family in families.values():
        require(family.type, "no type:", family.name)
        if family.type == "histogram":
            check_histogram(family)
        others = {n for n in samples if n == family.name} - {n for n, _ in family.samples}
        require(not others, "samples of another family have this name:", family.name)
        if family.type == "counter":
            require(all(0 <= v < math.inf for v in family.samples.values()),
                    "a counter below 0:", family.name)
    return families


def value(families, name, **labels):
    """The value of one series."""
    key = name, tuple(sorted(labels.items()))
    return next(f.samples[key] for f in families.values() if key in f.samples)


def total(families, name, **labels):
    """The sum over the series that have these labels."""
    wanted = set(labels.items())
    return sum(v for f in families.values() for (n, own), v in f.samples.items()
               if n == name and wanted <= set(own))


def known(families):
    """The names that the conditions of test_metrics_text.c use."""
    return dict(f=families, names=lambda: list(families),
                v=lambda name, **labels: value(families, "peercache_" + name, **labels),
                t=lambda name, **labels: total(families, "peercache_" + name, **labels),
                series=sum(len(f.samples) for f in families.values()))
