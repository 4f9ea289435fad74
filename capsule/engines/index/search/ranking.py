"""The profiles by which hits are ranked: by fit and by age. docs/search.md has the formula.

What must stay true: the same texts, query and time give the same order; of two equal scores the newer hit comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from capsule.errors import InvalidInput

#: Unless a profile ranks them all, the newest so many matches are ranked, and behind them the next.
WINDOW = 2048
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Profile:
    """How much age counts.

    Attributes:
        half_life_h: Hours until half of what being new is worth is gone; None: age is worth nothing.
        floor: What is left of the score of a hit that is very old.
    """

    half_life_h: float | None
    floor: float

    @property
    def ranks_all(self) -> bool:
        """Whether every match is ranked, however many there are."""
        return self.half_life_h is None

    def weigh(self, matches: list[tuple[float, int, int]], now_ms: int) -> list[float]:
        """The scores of matches: how well each fits (more is better), when it was written, and its number."""
        if self.half_life_h is None:
            return [fit for fit, _, _ in matches]
        floor, rest, half_ms = self.floor, 1 - self.floor, self.half_life_h * _HOUR_MS
        return [
            # A clock that is ahead makes nothing newer than new.
            fit * (floor + rest * 2.0 ** ((time_ms - now_ms) / half_ms)) if time_ms < now_ms else fit
            for fit, time_ms, _ in matches
        ]


PROFILES = {"recent": Profile(24.0, 0.1), "balanced": Profile(168.0, 0.5), "exact": Profile(None, 1.0)}


def profile_of(name: str) -> Profile:
    """The profile of this name. Raises InvalidInput when there is none."""
    if name not in PROFILES:
        raise InvalidInput(f"{name!r} is no ranking profile; there are: {', '.join(PROFILES)}")
    return PROFILES[name]
