"""The ladder as a chart: a panel a size, a bar a rung, on a scale of powers of ten."""

import textwrap
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_OURS, _OTHERS, _WORDS = "#0b7285", "#adb5bd", "#868e96"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Write the chart; the name of the file says its format."""
    rows = figures["rows"]
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    names = list(dict.fromkeys(row["rung"] for row in rows))
    columns = min(2, len(sizes))
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(8 * columns, (0.36 * len(names) + 1.2) * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for panel, size in zip(panels, sizes, strict=False):
        _panel(panel, size, {row["rung"]: row for row in rows if row["size"] == size})
    for panel in panels[len(sizes) :]:
        panel.set_visible(False)
    panels[0].invert_yaxis()
    # Room for what is written behind the longest bar.
    low, high = panels[0].get_xlim()
    panels[0].set_xlim(low, high * 30)
    machine = figures["machine"]
    gpus = f"; {len(machine['gpus'])} x {machine['gpus'][0]}" if machine["gpus"] else ""
    where = f"{machine['cpu']}, {machine['cores']} cores{gpus}"
    figure.suptitle(f"The nearest reference of every observation\n{where}", fontsize=11)
    figure.savefig(path, dpi=120)


def _panel(panel: Axes, size: str, rows: dict[str, dict[str, Any]]) -> None:
    panel.set_title(f"{size} (observations x references)", fontsize=10, loc="left")
    panel.set_xscale("log")
    panel.set_xlabel("ms, median; the line is from the least to the largest", fontsize=8)
    panel.grid(axis="x", color="#dee2e6", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(left=False, labelsize=8)
    panel.set_yticks(range(len(rows)), list(rows))
    for place, (name, row) in enumerate(rows.items()):
        if "reason" in row:
            words = textwrap.shorten(row["reason"], 70, placeholder="...")
            across = panel.get_yaxis_transform()
            panel.text(
                0.01, place, words, fontsize=6.5, color=_WORDS, va="center", transform=across
            )
            continue
        median, least, largest = (row[f"{n}_s"] * 1e3 for n in ("median", "least", "largest"))
        panel.barh(place, median, color=_OURS if name.startswith("ours") else _OTHERS, height=0.66)
        panel.plot([least, largest], [place, place], color="#212529", linewidth=1.2)
        note = f" {median:,.{0 if median > 100 else 3}f} ms" + (
            f", {row['wrong']:,} wrong" if row["wrong"] else ""
        )
        panel.text(largest, place, note, fontsize=7, va="center")
