"""What is in the store, counted and drawn; and on demand, whether all of it is well."""

from __future__ import annotations

from itertools import islice
from typing import Final

from starlette.responses import Response

from capsule.web import plots
from capsule.web.view import View, get

#: The number of days that are drawn, of names, and of findings of the doctor.
_DAYS: Final = 90
_NAMES: Final = 10
_FINDINGS: Final = 500


def _overview(view: View) -> Response:
    stats = view.store.stats()
    days = plots.latest_days({day: tally.messages for day, tally in stats.by_day.items()}, _DAYS)
    drawn = [
        (
            "day",
            plots.by_day("Messages by day", days),
            [(day, stats.by_day[day]) for day in days if days[day]],
        )
    ]
    for name, tallies in {
        "agent": stats.by_sender,
        "program": stats.by_source,
        "role": stats.by_role,
    }.items():
        shown = [*islice(tallies.items(), _NAMES)]
        counts = [(key, tally.messages) for key, tally in shown]
        drawn.append((name, plots.by_name(f"Messages by {name}", counts), shown))
    findings = None
    if view.asked("health"):
        from capsule.maintenance.doctor import examine

        findings = [*islice(examine(view.store), _FINDINGS)]
    return view.page("overview.html", stats=stats, drawn=drawn, findings=findings)


ROUTES = [get("/overview", _overview)]
