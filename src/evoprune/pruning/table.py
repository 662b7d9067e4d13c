"""A pruned network as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evoprune.pruning.cost import Cost
    from evoprune.pruning.prune import Pruned


def table_of(pruned: Pruned) -> Any:
    """The sites with their channels before and after, and what the network costs."""
    from rich.table import Table

    title = pruned.made.get("name") or pruned.made.get("importance") or "given scores"
    table = Table(title=f"pruned by {title}", title_justify="left", show_footer=True)
    cost = _cost_lines(pruned.before, pruned.after)
    table.add_column("site", footer="\n".join(name for name, *_ in cost), overflow="fold")
    for column, at in (("before", 1), ("after", 2), ("removed", 3)):
        table.add_column(column, footer="\n".join(line[at] for line in cost), justify="right")
    for site in pruned.sites:
        kept = len(pruned.kept[site.name])
        share = 1 - kept / site.channels
        table.add_row(site.name, str(site.channels), str(kept), f"{share:.1%}" if share else "")
    return table


def _cost_lines(before: Cost, after: Cost) -> list[tuple[str, str, str, str]]:
    lines = [
        ("multiply-accumulates", *_numbers(before.macs, after.macs)),
        ("parameters", *_numbers(before.parameters, after.parameters)),
    ]
    if before.latency is not None and after.latency is not None:
        removed = f"{1 - after.latency / before.latency:.1%}"
        lines.append(("latency", f"{1e3 * before.latency:.2f} ms", f"{1e3 * after.latency:.2f} ms", removed))
    return lines


def _numbers(before: int, after: int) -> tuple[str, str, str]:
    return f"{before:,}", f"{after:,}", f"{1 - after / before:.1%}"
