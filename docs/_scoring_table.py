"""Write what benchmarks/bench_scoring.py measured into docs/scoring.md: `python docs/_scoring_table.py`."""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results" / "scoring.json"
PAGE = HERE / "scoring.md"


def table() -> str:
    """What was measured beside its bar, as Markdown."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    settings = results.pop("settings")
    lines = ["| what | measured | bar |", "|---|---|---|"]
    for part in results.values():
        for line in part["lines"]:
            lines.append(f"| {line['what']} | {_number(line['measured'])} | {line['bar']} |")
    lines.append("")
    lines.append(
        f"Ratios of seconds, on {settings['images']} images and ResNet-56, unless said otherwise; "
        f"{settings['threads']} thread of a {settings['cores']}-core machine, torch {settings['torch']}, "
        f"{settings['date']}. How each function of the library is evaluated there:"
    )
    lines.append("")
    for name, by_mode in results["modes"]["sites by mode"].items():
        told = ", ".join(f"{mode} at {count} sites" for mode, count in sorted(by_mode.items()))
        lines.append(f"- `{name}`: {told}")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.2f}"


def with_table(page: str) -> str:
    """The page with the table in its place."""
    return re.sub(
        r"<!-- table -->\n.*<!-- end -->", f"<!-- table -->\n{table()}\n<!-- end -->", page, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
