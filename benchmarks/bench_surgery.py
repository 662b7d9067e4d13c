"""What pruning buys in time, and what a verified cut costs.

    python benchmarks/bench_surgery.py [--threads 1] [--cuts 10] [--json FILE]

First table: networks with half of their multiply-accumulates removed (by l1), CPU latency beside it.
Second: repeated cuts of one network with the traced graph reused, check included, as evolution makes them.
What is printed also goes into FILE (benchmarks/results/surgery.json).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import evoprune
from evoprune import networks
from evoprune.pruning.cost import measure_latency

HALVED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "VGG-16 (CIFAR)": (networks.vgg16, (16, 3, 32, 32), False),
    "ResNet-56 pre-activation": (lambda: networks.preact_resnet(56), (16, 3, 32, 32), False),
    "ResNet-56 pre-activation, selection": (lambda: networks.preact_resnet(56), (16, 3, 32, 32), True),
    "ResNet-18": (networks.resnet18, (1, 3, 224, 224), False),
    "ResNet-18, selection": (networks.resnet18, (1, 3, 224, 224), True),
    "MobileNetV2": (networks.mobilenet_v2, (1, 3, 224, 224), False),
}
CUT: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "ResNet-56, option A": (networks.resnet56, False),
    "ResNet-56, option A, selection": (networks.resnet56, True),
    "ResNet-56, pre-activation, selection": (lambda: networks.preact_resnet(56), True),
    "VGG-16 (CIFAR)": (networks.vgg16, False),
}


def halved(console: Console) -> dict[str, dict[str, float]]:
    result = {}
    table = Table(title="half of the multiply-accumulates removed", title_justify="left")
    table.add_column("network")
    table.add_column("input")
    for column in ("MACs left", "parameters left", "latency before", "after", "latency left"):
        table.add_column(column, justify="right")
    for name, (factory, shape, selection) in HALVED.items():
        torch.manual_seed(0)
        net, x = factory().eval(), torch.randn(shape)
        pruned = evoprune.prune(net, "l1", example_inputs=x[:1], flops=0.5, selection=selection)
        before, after = measure_latency(net, x), measure_latency(pruned.network, x)
        result[name] = {
            "macs_left": 1 - pruned.flops_removed,
            "parameters_left": 1 - pruned.params_removed,
            "seconds_before": before,
            "seconds_after": after,
            "latency_left": after / before,
        }
        table.add_row(
            name,
            "×".join(map(str, shape)),
            f"{1 - pruned.flops_removed:.1%}",
            f"{1 - pruned.params_removed:.1%}",
            f"{1e3 * before:.2f} ms",
            f"{1e3 * after:.2f} ms",
            f"{after / before:.1%}",
        )
    console.print(table)
    return result


def repeated(console: Console, cuts: int) -> dict[str, dict[str, float]]:
    result = {}
    table = Table(title=f"repeated verified cuts, {cuts} each", title_justify="left")
    table.add_column("network")
    for column in ("trace", "first cut", "median", "slowest"):
        table.add_column(column, justify="right")
    for name, (factory, selection) in CUT.items():
        torch.manual_seed(0)
        net, x = factory().eval(), torch.randn(1, 3, 32, 32)
        start = time.perf_counter()
        surgeon = evoprune.Surgeon(net, x, selection=selection)
        traced = time.perf_counter() - start
        times = []
        for _ in range(cuts + 1):
            kept = {
                site.name: torch.randperm(site.channels)[: max(1, site.channels // 2)].tolist()
                for site in surgeon.sites
            }
            start = time.perf_counter()
            surgeon.cut(kept)
            times.append(time.perf_counter() - start)
        numbers = {
            "trace": traced,
            "first cut": times[0],
            "median": median(times[1:]),
            "slowest": max(times[1:]),
        }
        table.add_row(name, *(f"{number:.2f} s" for number in numbers.values()))
        result[name] = numbers
    console.print(table)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/surgery.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(width=120)
    result = {
        "half of the multiply-accumulates": halved(console),
        "seconds of repeated cuts": repeated(console, arguments.cuts),
        "settings": {
            "cuts": arguments.cuts,
            "threads": arguments.threads,
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        },
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
