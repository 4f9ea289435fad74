"""A point in time as people and agents say it: a day, a time, how long ago, `today`, `yesterday`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.settings import seconds

_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d")
_NAMED = {"today": 0, "yesterday": 1}


def moment(text: str, *, until: bool = False) -> str:
    """The time that `text` means, as the format writes times. Days are those of UTC.

    Args:
        text: `2025-01-31`, `2025-01-31T12:00Z`, `today`, `yesterday`, or a duration before now: `90m`, `24h`, `3d`.
        until: Whether it is the end of a span, which does not belong to it. A day that is the end does: the span then
            ends with it.

    Raises:
        InvalidInput: It is none of these.
    """
    said = text.strip().lower()
    now = timestamps.parse(timestamps.now())
    try:
        if said in _NAMED:
            found = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=_NAMED[said])
        elif re.fullmatch(r"[\d.]+\s*[a-z]+", said):
            return timestamps.canonical((now - timedelta(seconds=seconds(said))).isoformat())
        else:
            found = timestamps.parse(text.strip())
        if until and (said in _NAMED or _DAY.fullmatch(text.strip())):
            found += timedelta(days=1)
    except OverflowError:
        found = (datetime.max if until and said[-1:].isdigit() else datetime.min).replace(tzinfo=UTC)
    except (ValueError, InvalidInput):
        raise InvalidInput(
            f"{text[:100]!r} is no time: give a day like 2025-01-31, a time like 2025-01-31T12:00Z, today, yesterday, "
            "or how long ago, like 24h or 3d"
        ) from None
    return timestamps.canonical(found.isoformat())
