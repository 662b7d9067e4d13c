"""The paper's figure of feature selection: the mean image, and what each function keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evoprune.report.figures import BLUE, RED, STYLE, plain, plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 5


def selection(mean: NDArray[np.float64], kept: Mapping[str, NDArray[np.bool_]]) -> Figure:
    """A panel for the mean image `[y, x]`, and one for each function: kept pixels red, dropped blue."""
    count = 1 + len(kept)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure, first = plane(2.1 * columns, 2.35 * rows + 0.2)
    first.remove()
    from matplotlib import rc_context
    from matplotlib.colors import ListedColormap

    with rc_context(STYLE):  # type: ignore[arg-type]
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        panels[0].imshow(mean, cmap="gray", interpolation="nearest")
        panels[0].set_title("mean image")
        colours = ListedColormap([BLUE, RED])
        for panel, (name, mask) in zip(panels[1:], kept.items(), strict=False):
            panel.imshow(mask.astype(float), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
            short = name if len(name) <= 24 else f"{name[:23]}…"
            panel.set_title(plain(short))
        for number, panel in enumerate(panels):
            panel.grid(False)
            panel.set_xticks([])
            panel.set_yticks([])
            for spine in panel.spines.values():
                spine.set_visible(False)
            panel.set_visible(number < count)
        figure.supxlabel("red: kept, blue: dropped", fontsize=8)
    return figure
