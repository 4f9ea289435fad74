"""Draws plots as inline SVG: vertical bars for days, and horizontal bars for names.

What must stay true: a plot has a name, and the page shows its figures in a table too. It is as wide
as the page allows, so widths are percentages and heights are pixels. It uses classes, since the
page forbids styles in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from markupsafe import Markup

#: Heights in pixels: of the vertical bars, of the dates below them, and of a horizontal bar with its
#: name.
_BARS_HEIGHT = 130
_DATES_HEIGHT = 22
_ROW_HEIGHT = 34
#: The width of the axis of numbers, in percent. The vertical bars begin there.
_AXIS_WIDTH = 10
#: The space above the highest bar, in pixels.
_TOP = 10
_SVG = Markup('<svg class="plot" width="100%" height="{}" role="img" aria-label="{}">{}</svg>')
_BAR = Markup(
    '<rect x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}"><title>{}</title></rect>'
)
_TEXT = Markup('<text x="{:.2f}%" y="{:.1f}" class="{}">{}</text>')
_LINE = Markup('<line x1="{}%" x2="100%" y1="{:.1f}" y2="{:.1f}"/>')


def latest_days(counts: Mapping[str, int], days: int) -> dict[str, int]:
    """Return the counts of the last days, up to the last day with a count. Other days have 0.

    Args:
        counts: The counts by day, like 2025-01-31. Names that are no days are ignored.
        days: The greatest number of days.
    """
    last_day = max((day for day in counts if len(day) == len("2025-01-31")), default="")
    if not last_day:
        return {}
    end = date.fromisoformat(last_day)
    # The calendar begins in the year 1.
    span = min(days, end.toordinal())
    shown_days = [str(end - timedelta(days=age)) for age in reversed(range(span))]
    return {day: counts.get(day, 0) for day in shown_days}


def scale(greatest: int) -> list[int]:
    """Return three to six round numbers for an axis: from 0 to `greatest` or a little more."""
    step = next(
        factor * 10**zeros
        for zeros in range(len(str(greatest)))
        for factor in (1, 2, 5)
        if factor * 10**zeros * 5 >= greatest
    )
    return [*range(0, max(greatest, 2) + step, step)]


def _short(number: int) -> str:
    """Return a number with a unit: `2k`, `1.5M`."""
    if number >= 10**6:
        return f"{number / 10**6:g}M"
    if number >= 10**3:
        return f"{number / 10**3:g}k"
    return f"{number}"


def by_day(title: str, counts: Mapping[str, int]) -> Markup:
    """Return a plot with a vertical bar for each day, an axis of numbers, and some of the dates."""
    axis = scale(max(counts.values(), default=0))
    day_width = (100 - _AXIS_WIDTH) / max(1, len(counts))
    bottom = _TOP + _BARS_HEIGHT
    drawing = Markup()
    for number in axis:
        y = _TOP + _BARS_HEIGHT * (1 - number / axis[-1])
        drawing += _LINE.format(_AXIS_WIDTH, y, y)
        drawing += _TEXT.format(_AXIS_WIDTH - 1, y + 4, "end", _short(number))
    for index, (day, number) in enumerate(counts.items()):
        height = _BARS_HEIGHT * number / axis[-1]
        x = _AXIS_WIDTH + index * day_width
        if number:
            label = f"{day}: {number:,}"
            drawing += _BAR.format(
                x + day_width / 10, bottom - height, day_width * 0.8, height, label
            )
        if index % (len(counts) // 6 + 1) == 0:
            drawing += _TEXT.format(x, bottom + _DATES_HEIGHT - 6, "", day[5:])
    return _SVG.format(bottom + _DATES_HEIGHT, title, drawing)


def by_name(title: str, counts: Sequence[tuple[str, int]]) -> Markup:
    """Return a plot with a horizontal bar for each name, below the name and its number."""
    greatest = max(1, *(number for _, number in counts), 1)
    drawing = Markup()
    for index, (name, number) in enumerate(counts):
        top = index * _ROW_HEIGHT
        label = name if len(name) <= 40 else f"{name[:39]}…"
        drawing += _TEXT.format(0, top + 14, "", label)
        drawing += _TEXT.format(100, top + 14, "end", f"{number:,}")
        drawing += _BAR.format(0, top + 19, 100 * number / greatest, 8, f"{name}: {number:,}")
    return _SVG.format(len(counts) * _ROW_HEIGHT, title, drawing)
