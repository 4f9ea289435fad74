"""Sampling several contestants in one loop, so that what the machine does meanwhile hits all of
them alike.

What must stay true: a ratio is only ever formed of contestants that were sampled in the same loop;
nothing is left out of a sample, and no sample is left out of a figure.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Contestant", "Samples", "interleave"]

#: No loop has more rounds than this; one is enough to see that the contestants run.
most_rounds = sys.maxsize


@dataclass(frozen=True, slots=True)
class Contestant:
    """One of those that are compared.

    Attributes:
        name: What the tables call it.
        once: The work, once; its result is dropped.
        every: Takes part in every n-th round only, for what takes long.
        prepare: Runs before each `once`, outside the time that is measured.
    """

    name: str
    once: Callable[[], Any]
    every: int = 1
    prepare: Callable[[], Any] | None = None


@dataclass(slots=True)
class Samples:
    """The durations of one contestant, in seconds."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        """The smallest sample that at least a share `q` of all samples does not exceed (nearest
        rank).
        """
        ordered = sorted(self.seconds)
        return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    def as_json(self) -> dict[str, Any]:
        """The figures that `results.json` keeps, in microseconds."""
        figures = {
            "median": self.median,
            "p95": self.quantile(0.95),
            "p99": self.quantile(0.99),
            "max": max(self.seconds),
        }
        return {"rounds": len(self.seconds)} | {
            f"{name}_us": round(s * 1e6, 1) for name, s in figures.items()
        }


def interleave(
    contestants: Sequence[Contestant],
    rounds: int,
    *,
    budget_s: float = math.inf,
    warm_up: int = 3,
    tick: Callable[[], None] | None = None,
) -> dict[str, Samples]:
    """Run every contestant once a round, in an order that is drawn anew for each round.

    A fixed order would let one contestant always bear what another leaves behind: dirty pages, a
    full journal.

    Args:
        contestants: Those that are compared; their names are unique.
        rounds: How many rounds.
        budget_s: No further round is begun after this many seconds, once there were five.
        warm_up: Rounds before the first that counts.
        tick: Called after each round.

    Returns:
        The samples by name, in the order of `contestants`.
    """
    samples = {contestant.name: Samples(contestant.name) for contestant in contestants}
    if len(samples) != len(contestants):
        raise ValueError("two contestants of one name")
    order, draw = list(contestants), random.Random(len(contestants))
    rounds, warm_up = min(rounds, most_rounds), min(warm_up, most_rounds - 1)
    clock = time.perf_counter
    deadline = clock() + budget_s
    gc.collect()
    for number in range(-warm_up, rounds):
        draw.shuffle(order)
        for contestant in order:
            if number % contestant.every:
                continue
            if contestant.prepare is not None:
                contestant.prepare()
            once = contestant.once
            start = clock()
            once()
            taken = clock() - start
            if number >= 0:
                samples[contestant.name].seconds.append(taken)
        if tick is not None:
            tick()
        if number >= 4 and clock() > deadline:
            break
    return samples
