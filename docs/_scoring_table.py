"""Write what benchmarks/bench_scoring.py measured into docs/scoring.md: `python docs/_scoring_table.py`."""

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "scoring.json"
PAGE = HERE / "scoring.md"


def table() -> str:
    """The measured ratios beside their bars, as Markdown."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    settings = results.pop("settings")
    lines = ["| what | measured | bar |", "|---|---|---|"]
    for name, result in results.items():
        value = result.get("ratio", result.get("relative error"))
        if value is None:
            continue
        bar = result["bar"]
        if isinstance(value, dict):
            for part, ratio in value.items():
                lines.append(f"| {name}: {part} | {_number(ratio)} | {_bar(bar, part)} |")
        else:
            lines.append(f"| {name} | {_number(value)} | {_bar(bar, '')} |")
    lines.append("")
    lines.append(
        f"{settings['images']} images, ResNet-56 unless said otherwise, {settings['threads']} thread of a "
        f"2-core machine, torch {settings['torch']}, {settings['date']}; ratios of seconds unless said "
        "otherwise."
    )
    return "\n".join(lines)


def _bar(bar: Any, part: str) -> str:
    bar = bar.get(part, "") if isinstance(bar, dict) else bar
    return bar if isinstance(bar, str) else f"≤ {bar:g}"


def _number(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2f}"


def with_table(page: str) -> str:
    """The page with the table in its place."""
    return re.sub(
        r"<!-- table -->\n.*<!-- end -->", f"<!-- table -->\n{table()}\n<!-- end -->", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
