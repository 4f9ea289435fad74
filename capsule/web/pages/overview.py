"""The page with the figures of the store as plots, and on request the findings of the doctor."""

from __future__ import annotations

from itertools import islice
from typing import Final

from starlette.responses import Response

from capsule.web import plots
from capsule.web.view import View, get

#: The greatest numbers of days and of names in a plot, and of findings of the doctor.
_DAYS: Final = 90
_NAMES: Final = 10
_FINDINGS: Final = 500


def _overview(view: View) -> Response:
    stats = view.store.stats()
    days = plots.latest_days({day: tally.messages for day, tally in stats.by_day.items()}, _DAYS)
    # Triples of a name, its plot, and the figures in it.
    day_figures = [(day, stats.by_day[day]) for day in days if days[day]]
    drawings = [("day", plots.by_day("Messages by day", days), day_figures)]
    groups = {"agent": stats.by_sender, "program": stats.by_source, "role": stats.by_role}
    for name, tallies in groups.items():
        figures = [*islice(tallies.items(), _NAMES)]
        counts = [(key, tally.messages) for key, tally in figures]
        drawings.append((name, plots.by_name(f"Messages by {name}", counts), figures))
    findings = None
    if view.parameter("health"):
        from capsule.maintenance.doctor import examine

        findings = [*islice(examine(view.store), _FINDINGS)]
    return view.page("overview.html", stats=stats, drawn=drawings, findings=findings)


ROUTES = [get("/overview", _overview)]
