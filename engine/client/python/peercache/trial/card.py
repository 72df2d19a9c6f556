# SPDX-License-Identifier: Apache-2.0
"""What the code assumes of a card: the experiments of `peercache-engine --card`. Main thread."""

import json
from typing import Iterator

from peercache.trial.engines import Engines
from peercache.trial.frame import Answer, Failed, Trial, Unknown

FALLBACK = "rail.validate=crc"  # for a card on which pages may be wrong
TRIES, TRIES_QUICK = 1000000, 2000


def try_out(trial: Trial, engines: Engines) -> Iterator[tuple[str, Answer]]:
    """A step for each assumption, on the first pair of ports. Where it does not hold, the promise
    that it carries is named, and the engines of later steps get the setting that keeps it."""
    own = engines.devices[0].split(",")[0]
    pair = own if trial.options.peer else f"{own},{engines.devices[1].split(',')[0]}"
    words = [trial.program("peercache-engine"), *engines.settings(0), "--card", pair, "--tries",
             str(TRIES_QUICK if trial.options.quick else TRIES)]
    child = trial.start(words, "card.log", stdout=-1, text=True)
    try:
        for line in child.stdout or ():
            if not line.endswith("\n"):
                break  # it ended within the line
            found = json.loads(line)
            trial.facts.setdefault("card", {}).update(found["figures"])
            text = f"{found['text']} ({found['tries']} tries)"
            if found["answer"] == "no":
                text += f". It breaks: {found['promise']}"
            if FALLBACK in found["do"] and not any(
                    value.startswith("rail.validate=") for value in trial.options.settings):
                trial.facts["fallback"] = FALLBACK
            yield f"card: {found['name']}", Answer(found["answer"], text, found["do"], found)
        if child.wait():
            raise Failed(f"{pair} cannot be used: {trial.tail('card.log')}",
                         "do what the line says; card.log of the report has all of them")
    finally:
        trial.end(child, 2)
    if own == "soft":
        raise Unknown("no hardware for it: these were experiments with the software NIC")


def model_line(trial: Trial) -> Answer:
    """The port as a value of soft.model, for measurements without it."""
    card = trial.facts.get("card", {})
    if "rtt_ns" not in card:
        raise Unknown("the card was not tried")
    line = (f"{card['gbps'] or 400}G,rtt={card['rtt_ns']}ns,reads={card['reads']},"
            f"qp_rate={card['qp_rate'] / 1e6:.3f}M,mtu={card['mtu']}")
    return Answer("yes", f"soft.model = {line}", data=line)
