"""What is in the store, counted and drawn; and on demand, whether all of it is well."""

from __future__ import annotations

from itertools import islice
from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from capsule.web import plots
from capsule.web.view import View, page

#: The number of days that are drawn, of months, of names, and of findings of the doctor.
_DAYS: Final = 90
_MONTHS: Final = 12
_NAMES: Final = 10
_FINDINGS: Final = 500


def _overview(view: View) -> Response:
    stats = view.store.stats()
    days = plots.latest_days({day: tally.messages for day, tally in stats.by_day.items()}, _DAYS)
    said = [(day, number) for day, number in days.items() if number]
    drawn = [("Messages by day", "Day", plots.by_day("Messages by day", days), said)]
    names = {"month": stats.by_month, "agent": stats.by_sender, "program": stats.by_source, "role": stats.by_role}
    for name, tallies in names.items():
        counts = [(key, tally.messages) for key, tally in tallies.items()]
        shown = counts[-_MONTHS:] if name == "month" else counts[:_NAMES]
        title = f"Messages by {name}"
        drawn.append((title, name.capitalize(), plots.by_name(title, shown), shown))
    findings = None
    if view.asked("health"):
        from capsule.maintenance.doctor import examine

        findings = [*islice(examine(view.store), _FINDINGS)]
    return view.page("overview.html", stats=stats, drawn=drawn, findings=findings)


ROUTES = [Route("/overview", page(_overview))]
