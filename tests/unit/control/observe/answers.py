#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates Python expressions about texts for python_world.h, in one process for a whole test.

A question on the standard input is three times the number of bytes, an end of line and the bytes:
the name of a reader below, the expression, the text. The answer is a line: "yes", or "no" with the
reason. The reader turns the text into the names that the expression uses.
"""

import functools
import json
import sys
import traceback

import exposition


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def load(text):
    return json.loads(text, parse_constant=no_constant)


def history(text):
    h = load(text)
    return {"h": h, "p": [dict(zip(h["columns"], q, strict=True)) for q in h["points"]]}


def status(text):
    d = load(text)
    return {"d": d, "f": d["health"]["findings"]}


def report(text):
    r = load(text)
    return {"r": r, "f": r["figures"]}


def view(text):
    v = load(text)
    return {"v": v, "r": {row["name"]: row for row in v["rows"]},
            "o": [row["name"] for row in v["rows"]]}


READERS = {"exposition": lambda text: exposition.known(exposition.parse(text)), "history": history,
           "report": report, "status": status, "view": view}


@functools.lru_cache(1)
def names(reader, text):
    return READERS[reader](text.decode("utf-8"))


def answer(reader, expression, text):
    try:
        holds = eval(expression, dict(names(reader, text)))  # pylint: disable=eval-used
        return "yes" if holds else "no: the expression is false"
    except Exception:  # pylint: disable=broad-except
        return "no: " + traceback.format_exc(limit=0).replace("\n", " ")


def main():
    asked = sys.stdin.buffer
    while True:
        parts = []
        for _ in range(3):
            line = asked.readline()
            if not line:
                return 0
            parts.append(asked.read(int(line)))
        print(answer(parts[0].decode(), parts[1].decode(), parts[2]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
