"""The plot of what an append costs against the size of the conversation, made from the figures of a
run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["draw", "missing"]

_STYLE: dict[str, dict[str, Any]] = {
    "capsule": {"color": "#c1272d", "linewidth": 2.6, "marker": "o", "zorder": 5},
    "sqlite FULL": {"color": "#1f77b4", "marker": "s"},
    "sqlite NORMAL": {"color": "#1f77b4", "marker": "s", "linestyle": ":", "alpha": 0.7},
    "rewriting": {"color": "#555555", "marker": "v"},
    "tinydb": {"color": "#2ca02c", "marker": "^"},
    "langchain": {"color": "#9467bd", "marker": "D"},
    "llm": {"color": "#ff7f0e", "marker": "P"},
}
_LABELS = {
    "sqlite FULL": "sqlite3, WAL FULL + FTS5",
    "sqlite NORMAL": "sqlite3, WAL NORMAL + FTS5 (not durable)",
    "rewriting": "read JSON, append, rename",
    "tinydb": "TinyDB",
    "langchain": "LangChain file history (not durable)",
    "llm": "llm's log database (a turn)",
}


def missing() -> str:
    """Why nothing can be drawn; empty when it can."""
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        return f"not importable ({error}); pip install matplotlib"
    return ""


def draw(by_size: list[dict[str, Any]], directory: Path) -> list[Path]:
    """Draw cost against size.

    Args:
        by_size: `by_size` of the append measurement's data.
        directory: Where `append-cost.png` and `append-cost.svg` are written.

    Returns:
        The files.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "capsule"
    from matplotlib import pyplot

    lines: dict[str, list[tuple[int, float]]] = {}
    for size in by_size:
        for name, figures in size["who"].items():
            lines.setdefault(name, []).append((size["messages"], figures["median_us"] / 1000))
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=_LABELS.get(name, name), **_STYLE.get(name, {}))
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("messages in the conversation, of 400 bytes")
    axes.set_ylabel("one append, median, milliseconds")
    axes.set_title("What an append costs, by the size of the conversation")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    written = []
    for kind, options in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
        path = directory / f"append-cost.{kind}"
        figure.savefig(path, **options)
        written.append(path)
    pyplot.close(figure)
    return written
