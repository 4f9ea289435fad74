"""Plots as inline SVG: upright bars by day, and lying bars by name.

What must stay true: a plot has a name, and the page has its figures in a table beside it. It is as
wide as its place, so widths are parts of it and heights are pixels, and it uses classes only, as
the page forbids styles in it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from markupsafe import Markup

#: Pixels: a plot of days above its dates, and the dates; a lying bar with its name.
_HIGH, _DATES, _ROW = 130, 22, 34
#: Percent: where the bars of days begin, behind the numbers.
_LEFT = 10
_SVG = Markup('<svg class="plot" width="100%" height="{}" role="img" aria-label="{}">{}</svg>')
_BAR = Markup(
    '<rect x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}"><title>{}</title></rect>'
)
_TEXT = Markup('<text x="{:.2f}%" y="{:.1f}" class="{}">{}</text>')
_LINE = Markup('<line x1="{}%" x2="100%" y1="{:.1f}" y2="{:.1f}"/>')


def latest_days(counts: Mapping[str, int], days: int) -> dict[str, int]:
    """The counts of the last days, up to the last one with a count; a day without one has 0.

    Args:
        counts: By day, like 2025-01-31; what is no day is left out.
        days: How many days, at most.
    """
    last = max((day for day in counts if len(day) == len("2025-01-31")), default="")
    if not last:
        return {}
    end = date.fromisoformat(last)
    span = (str(end - timedelta(days=ago)) for ago in reversed(range(min(days, end.toordinal()))))
    return {day: counts.get(day, 0) for day in span}


def scale(most: int) -> list[int]:
    """Round numbers for an axis: from 0 to `most` or a little more, three to six of them."""
    step = next(
        by * 10**zeros
        for zeros in range(len(str(most)))
        for by in (1, 2, 5)
        if by * 10**zeros * 5 >= most
    )
    return [*range(0, max(most, 2) + step, step)]


def _short(number: int) -> str:
    return next(
        (
            f"{number / unit:g}{name}"
            for unit, name in ((10**6, "M"), (10**3, "k"))
            if number >= unit
        ),
        f"{number}",
    )


def by_day(title: str, counts: Mapping[str, int]) -> Markup:
    """Upright bars, one for each day, with an axis of numbers and some of the days."""
    axis, wide, drawn = (
        scale(max(counts.values(), default=0)),
        (100 - _LEFT) / max(1, len(counts)),
        Markup(),
    )
    for number in axis:
        y = 10 + _HIGH * (1 - number / axis[-1])
        drawn += _LINE.format(_LEFT, y, y) + _TEXT.format(_LEFT - 1, y + 4, "end", _short(number))
    for at, (day, number) in enumerate(counts.items()):
        tall, x = _HIGH * number / axis[-1], _LEFT + at * wide
        drawn += (
            _BAR.format(x + wide / 10, 10 + _HIGH - tall, wide * 0.8, tall, f"{day}: {number:,}")
            if number
            else ""
        )
        if at % (len(counts) // 6 + 1) == 0:
            drawn += _TEXT.format(x, 10 + _HIGH + _DATES - 6, "", day[5:])
    return _SVG.format(10 + _HIGH + _DATES, title, drawn)


def by_name(title: str, counts: Sequence[tuple[str, int]]) -> Markup:
    """Lying bars, each below its name and its number."""
    most, drawn = max(1, *(number for _, number in counts), 1), Markup()
    for at, (name, number) in enumerate(counts):
        drawn += _TEXT.format(0, at * _ROW + 14, "", name if len(name) <= 40 else f"{name[:39]}…")
        drawn += _TEXT.format(100, at * _ROW + 14, "end", f"{number:,}")
        drawn += _BAR.format(0, at * _ROW + 19, 100 * number / most, 8, f"{name}: {number:,}")
    return _SVG.format(len(counts) * _ROW, title, drawn)
