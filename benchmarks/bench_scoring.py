"""Scoring against what it stands on: a plain forward pass, a NumPy loop, Torch-Pruning.

    python benchmarks/bench_scoring.py [--images 2048] [--repeats 5] [--json FILE] [--only PART …]

Every line is a ratio of two things measured alternately in this run, each the least of its repeats. One
thread unless OMP_NUM_THREADS says otherwise. Peak memory is measured in processes of its own. Each part is
written when it is done; with --only, into the file of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

import evoprune
from evoprune.expression.library import functions, resolve_all
from evoprune.networks import resnet56, vgg16
from evoprune.pruning.sites import Site, first_read, maps_of
from evoprune.scoring.plan import Plan, plan
from evoprune.scoring.statistics import Plans

STREAMABLE = [name for name in functions if name not in ("di", "mmd")]
BATCH = 128
RESULTS = Path(__file__).parent / "results" / "scoring.json"


@dataclass(frozen=True)
class Line:
    """One thing measured, and what it must be at `most` or at `least`; neither where it is reported only."""

    what: str
    measured: float
    most: float | None = None
    least: float | None = None

    @property
    def bar(self) -> str:
        if self.most is not None:
            return f"≤ {self.most:g}"
        return "reported" if self.least is None else f"≥ {self.least:g}"

    @property
    def verdict(self) -> str:
        if self.most is None and self.least is None:
            return "reported"
        high = self.most is not None and self.measured > self.most
        low = self.least is not None and self.measured < self.least
        return "missed" if high or low else "met"


@dataclass(frozen=True)
class Part:
    """What one part of the benchmark found: its lines, and what they rest on."""

    lines: list[Line]
    more: dict[str, Any] = field(default_factory=dict)


def images(count: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 3, 32, 32, generator=generator),
        torch.randint(classes, (count,), generator=generator),
    )


def forward(model: nn.Module, inputs: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        for start in range(0, len(inputs), BATCH):
            model(inputs[start : start + BATCH])


@contextmanager
def threads(count: int) -> Iterator[int]:
    """So many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


def side_by_side(repeats: int, *actions: Callable[[], Any]) -> list[float]:
    """The least seconds of each, measured in turns."""
    best = [float("inf")] * len(actions)
    for _ in range(repeats):
        for i, action in enumerate(actions):
            started = time.perf_counter()
            action()
            best[i] = min(best[i], time.perf_counter() - started)
    return best


def over_forward(
    model: nn.Module,
    names: list[str],
    data: tuple[Tensor, Tensor],
    repeats: int,
    layout: torch.memory_format = torch.contiguous_format,
) -> float:
    """Seconds to score over those of a forward pass of the same images, laid out in memory as said."""
    sites = evoprune.sites(model, data[0][:1])
    laid = data[0].contiguous(memory_format=layout)
    plain, scored = side_by_side(
        repeats,
        lambda: forward(model, laid),
        lambda: evoprune.score(model, names, data, sites=sites, batch_size=BATCH),
    )
    return scored / plain


def streamable(options: argparse.Namespace) -> Part:
    """All streamable library functions over a forward pass of the same images, by label values."""
    model = resnet56()
    few = [name for name in STREAMABLE if not class_maps(name)]
    lines = []
    for classes, names, most in ((10, STREAMABLE, 1.25), (100, few, 1.5), (1000, few, 1.5)):
        ratio = over_forward(model, names, images(options.images, classes), options.repeats)
        lines.append(Line(f"{len(names)} functions over a forward pass, {classes} classes", ratio, most=most))
    title, data = f"{len(STREAMABLE)} functions over a forward pass, 10 classes", images(options.images)
    laid = over_forward(model, STREAMABLE, data, options.repeats, torch.channels_last)
    lines.append(Line(f"{title}, the images given with channels last", laid))
    with threads(os.cpu_count() or 1) as several:
        ratio = over_forward(model, STREAMABLE, data, options.repeats)
        lines.append(Line(f"{title}, on {several} threads", ratio, most=1.25))
    return Part(lines, {"functions": STREAMABLE, "without sums of maps for each class": few})


def class_maps(name: str) -> bool:
    """Whether a function needs a sum of maps for each class."""
    return any(need.by_class and need.kind == "pixel moments" for need in plan(name).needs)


def modes(options: argparse.Namespace) -> Part:
    """How each library function is evaluated on ResNet-56, by site."""
    model, (inputs, _) = resnet56(), images(1)
    sites = evoprune.sites(model, inputs)
    counts = {}
    for name in functions:
        plans = Plans.of(resolve_all(name), 10)
        counts[name] = Counter(mode_of(plans.at(site)) for site in sites)
        told = ", ".join(f"{mode} at {count} sites" for mode, count in sorted(counts[name].items()))
        print(f"  {name:<16} {told}")
    return Part([], {"sites by mode": counts})


def mode_of(chosen: Plan) -> str:
    """How the function of a plan is evaluated."""
    return "sample" if chosen.sampled else "streamed" if chosen.reads_maps else "parameters"


def single_images(options: argparse.Namespace) -> Part:
    """di and mmd, each alone, over a forward pass of the images they read."""
    model, data = resnet56(), images(min(options.images, options.sample))
    return Part(
        [
            Line(
                f"{name} alone over a forward pass of its {len(data[0])} images",
                over_forward(model, [name], data, 1),
            )
            for name in ("di", "mmd")
        ]
    )


def many_functions(options: argparse.Namespace) -> Part:
    """50 random streamable functions over one of them."""
    torch.manual_seed(0)  # which functions score finitely depends on the weights
    model, data = resnet56(), images(options.images)
    sites = evoprune.sites(model, data[0][:1])
    texts = random_functions(50, model, data, sites)
    one, fifty = side_by_side(
        options.repeats,
        lambda: evoprune.score(model, texts[:1], data, sites=sites, batch_size=BATCH),
        lambda: evoprune.score(model, texts, data, sites=sites, batch_size=BATCH),
    )
    found = {"functions": texts, "statistics": len(plan(texts).needs)}
    return Part([Line("50 random streamable functions over 1", fifty / one, most=1.3)], found)


def random_functions(
    count: int, model: nn.Module, data: tuple[Tensor, Tensor], sites: Sequence[Site], seed: int = 0
) -> list[str]:
    """Random trees as evolution starts from, of the streamed ones that read maps and score finitely here."""
    from evoprune.evolution.variation import Nursery

    rng, nursery = np.random.default_rng(seed), Nursery()
    drawn: dict[str, None] = {}
    while len(drawn) < 2 * count:
        child = nursery.random(rng)
        if child is not None and child.expr.operands & {"F", "F+", "F-"} and plan(child.expr).streamed:
            drawn[str(child.expr)] = None
    statistics = evoprune.gather(model, drawn, data, sites=sites, batch_size=BATCH)
    texts = []
    for text in drawn:
        with suppress(evoprune.EvopruneError):  # a product of all entries overflows
            evoprune.score(model, text, sites=sites, statistics=statistics)
            texts.append(text)
    return texts[:count]


def memory(options: argparse.Namespace) -> Part:
    """Peak memory above a forward pass, at ten times the images; not timed, so two processes at once."""
    runs = [(what, count) for count in (10 * options.images, options.images) for what in ("score", "forward")]

    def measured(run: tuple[str, int]) -> int:
        what, count = run
        process = subprocess.run(
            [sys.executable, __file__, "--peak", what, "--images", str(count)],
            check=True,
            capture_output=True,
            text=True,
            # What is freed goes back at once: the peak is of what is in use, not of what malloc keeps.
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
        )
        return int(process.stdout.split()[-1])

    with ThreadPoolExecutor(2) as pool:
        peaks = dict(zip(runs, pool.map(measured, runs), strict=True))
    above = {n: (peaks["score", n] - peaks["forward", n]) / 1024 for n in {count for _, count in runs}}
    few, many = sorted(above)
    title = f"peak memory above a forward pass, {many} images over {few}"
    return Part(
        [Line(title, above[many] / above[few], most=1.1)], {"MiB above the forward pass, by images": above}
    )


def peak(what: str, count: int) -> None:
    """Print the peak memory (KiB) of one pass; images are made batch by batch, as a loader would."""
    torch.set_num_threads(1)
    model = resnet56()

    def batches() -> Any:
        for start in range(0, count, BATCH):
            yield images(min(BATCH, count - start), seed=start)

    if what == "forward":
        for inputs, _ in batches():
            forward(model, inputs)
    else:
        evoprune.score(model, STREAMABLE, batches(), sites=evoprune.sites(model, images(1)[0]))
    # Not getrusage's: that remembers what the process was before it became this one.
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in each]
    print(line.split()[1])


def numpy_loop(options: argparse.Namespace) -> Part:
    """A NumPy loop over channels and classes, vectorised over images and pixels, over ours, on VGG-16's maps.

    For ξ* alone, and for all streamable functions that read maps together. Both start from maps in memory.
    """
    model = vgg16()
    data = images(min(options.images, 1024))
    sites = evoprune.sites(model, data[0][:1])
    labels = data[1].numpy()
    every = list(BY_CHANNEL)
    lines = []
    several = os.cpu_count() or 1
    for site, names in (
        (sites[0], ["xi_star"]),
        (sites[4], ["xi_star"]),
        (sites[8], ["xi_star"]),
        (sites[4], every),
        (sites[8], every),
    ):
        maps = maps_at(model, site, data[0])
        array = maps.numpy()
        want: list[np.ndarray] = []
        (loop,) = side_by_side(1, lambda: want.append(by_channel(names, array, labels)))  # noqa: B023
        what = "ξ*" if len(names) == 1 else f"{len(names)} functions"
        title = f"NumPy loop over ours, {what} at {site.name} {list(maps.shape[1:])}"
        for count in dict.fromkeys((torch.get_num_threads(), several)):
            with threads(count):
                (ours,) = side_by_side(
                    3 * options.repeats,
                    lambda: from_maps(names, maps, data[1], site),  # noqa: B023
                )
            lines.append(Line(title if count == 1 else f"{title}, on {count} threads", loop / ours, least=50))
        np.testing.assert_allclose(from_maps(names, maps, data[1], site), want[0], rtol=1e-3)
    return Part(lines, {"images": len(labels)})


def from_maps(names: list[str], maps: Tensor, labels: Tensor, site: Site) -> np.ndarray:
    """Scores by the streaming sums, from maps in memory."""
    from evoprune.scoring.accumulate import SiteSums
    from evoprune.scoring.execute import evaluate
    from evoprune.scoring.groups import Batch, Groups
    from evoprune.scoring.leaves import StatisticLeaves
    from evoprune.scoring.statistics import SiteStatistics

    chosen = plan(names)
    sums = SiteSums(chosen.needs, site.map_size, {})
    for start in range(0, len(maps), BATCH):
        sums.add(Batch(maps[start : start + BATCH].flatten(2), Groups(labels[start : start + BATCH])))
    counts = torch.bincount(labels).double()
    statistics = SiteStatistics(site.channels, site.map_size, sums.finished(counts))
    leaves = StatisticLeaves(statistics, counts, len(labels), {"W": torch.zeros(1, 1, 1, 1)})
    return evaluate(chosen.program, leaves, site.channels).numpy()


def by_channel(names: list[str], maps: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scores `[function, channel]` as one writes them well in NumPy: loops over channels and classes.

    A channel's maps are brought together, and split into F+ and F-, once for all functions.
    """
    scores = np.zeros((len(names), maps.shape[1]))
    inside = [labels == k for k in np.unique(labels)]
    size = maps.shape[2:]
    for channel in range(maps.shape[1]):
        f = maps[:, channel].reshape(len(maps), -1).astype(np.float64)
        shared = [SHARED[name](f) if name in SHARED else None for name in names]
        for mask in inside:
            plus, minus = f[mask], f[~mask]
            for row, name in enumerate(names):
                scores[row, channel] += BY_CHANNEL[name](f, plus, minus, shared[row], size)
    return scores / len(inside)


def _third(plus: float, minus: float, mean: float, average: np.ndarray) -> np.ndarray:
    return average.std() * minus * average + plus - mean


def _xi_star(f: Any, p: Any, m: Any, average: Any, size: Any) -> float:
    a, b = p.var(), m.var()
    return b / (a + 0.05) + a / (b + 0.05) + (_third(a, b, m.mean(), average) ** 2).sum() / (a + b + 0.05)


def _xi_star_code(f: Any, p: Any, m: Any, average: Any, size: Any) -> float:
    a, b = p.var(), m.var()
    each = b / (a + 0.05) + a / (b + 0.05) + _third(a, b, m.mean(), average) ** 2 / (a + b + 0.05)
    return float(each.sum())


def _xi_1(f: Any, p: Any, m: Any, average: Any, size: Any) -> float:
    a, b = p.var(), m.var()
    return ((average - b) ** 2).sum() / (a + b + 0.05) + a


def _xi_imagenet(f: Any, p: Any, m: Any, root_variance: Any, size: Any) -> float:
    traces = p.reshape(len(p), *size).trace(axis1=1, axis2=2)
    inner = _quotient(p.mean(0).var(), traces.std() * m.mean())
    return _quotient(inner**4, root_variance)


def _quotient(a: float, b: float) -> float:
    return a / b if abs(b) >= 1e-12 else 0.0


def _sym_div(f: Any, p: Any, m: Any, shared: Any, size: Any) -> float:
    a, b = p.var(), m.var()
    return a / (b + 0.05) + b / (a + 0.05) + (p.mean() - m.mean()) ** 2 / (a + b + 0.05)


def _t_test(f: Any, p: Any, m: Any, shared: Any, size: Any) -> float:
    return abs(p.mean() - m.mean()) / np.sqrt(p.var() / len(p) + m.var() / len(m) + 1e-4)


def _mean_map(f: np.ndarray) -> np.ndarray:
    return np.asarray(f.mean(0))


BY_CHANNEL: dict[str, Callable[..., Any]] = {
    "abs_snr": lambda f, p, m, s, z: abs(p.mean() - m.mean()) / (p.std() + m.std() + 1e-4),
    "t_test": _t_test,
    "fdr": lambda f, p, m, s, z: (p.mean() - m.mean()) ** 2 / (p.var() + m.var() + 1e-4),
    "sym_div": _sym_div,
    "xi_star": _xi_star,
    "xi_1": _xi_1,
    "xi_2": lambda f, p, m, s, z: p.var(),
    "xi_imagenet": _xi_imagenet,
    "xi_star_code": _xi_star_code,
}
SHARED: dict[str, Callable[[np.ndarray], Any]] = {
    "xi_star": _mean_map,
    "xi_star_code": _mean_map,
    "xi_1": _mean_map,
    "xi_imagenet": lambda f: np.sqrt(np.abs(f)).var(),
}


def maps_at(model: nn.Module, site: Site, inputs: Tensor) -> Tensor:
    seen: list[Tensor] = []
    reader = model.get_submodule(first_read(site).module)
    handle = reader.register_forward_pre_hook(
        lambda module, args: seen.append(maps_of(site, args[0]).clone())
    )
    forward(model, inputs)
    handle.remove()
    return torch.cat(seen)


def taylor(options: argparse.Namespace) -> Part:
    """Against Torch-Pruning's Taylor importance with its backward pass, over all images."""
    import torch_pruning

    model = resnet56()
    data = images(options.images)
    sites = evoprune.sites(model, data[0][:1])
    graph = torch_pruning.DependencyGraph().build_dependency(model, data[0][:1])

    def theirs() -> None:
        importance = torch_pruning.importance.GroupTaylorImportance()
        model.zero_grad()
        for start in range(0, len(data[0]), BATCH):
            stop = start + BATCH
            nn.functional.cross_entropy(model(data[0][start:stop]), data[1][start:stop]).backward()
        for group in graph.get_all_groups(root_module_types=[nn.Conv2d]):
            importance(group)

    ours, other = side_by_side(
        options.repeats,
        lambda: evoprune.score(model, STREAMABLE, data, sites=sites, batch_size=BATCH),
        theirs,
    )
    title = f"{len(STREAMABLE)} functions over Torch-Pruning's Taylor importance with its backward pass"
    return Part([Line(title, ours / other, most=1.0)], {"torch-pruning": torch_pruning.__version__})


def precision(options: argparse.Namespace) -> Part:
    """ξ* on float32 maps with mean 1000 and deviation 1, streamed, against the definition in float64."""
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 1, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4)[:, :, None, None])
    inputs = 1000 + torch.randn(2000, 4, 8, 8, generator=generator)
    labels = torch.randint(10, (2000,), generator=generator)
    (site,) = evoprune.sites(model, inputs[:1])
    want = evoprune.score_arrays("xi_star", inputs.double(), labels, dtype="float64", executor="reference")
    got = evoprune.score(model, "xi_star", (inputs, labels), sites=[site])["xi_star"][site.name].numpy()
    error = float(np.max(np.abs(got - want) / np.abs(want)))
    return Part([Line("relative error of ξ* on float32 maps with mean 1000, deviation 1", error, most=1e-4)])


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "modes": modes,
    "precision": precision,
    "streamable": streamable,
    "many": many_functions,
    "taylor": taylor,
    "numpy": numpy_loop,
    "memory": memory,
    "single": single_images,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--sample", type=int, default=2000, help="images for di and mmd")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--peak", choices=["forward", "score"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak(options.peak, options.images)
        return
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    fresh = set(options.only) == set(PARTS) or not options.json.exists()
    results = {} if fresh else json.loads(options.json.read_text(encoding="utf-8"))
    for name in options.only:
        print(f"{name}: {(PARTS[name].__doc__ or '').splitlines()[0]}", flush=True)
        started = time.perf_counter()
        part = PARTS[name](options)
        for line in part.lines:
            measured = f"{line.measured:.1e}" if line.measured < 1e-3 else f"{line.measured:.2f}"
            print(f"  {line.what}: {measured}  ({line.bar}: {line.verdict})", flush=True)
        lines = [asdict(line) | {"bar": line.bar, "verdict": line.verdict} for line in part.lines]
        results[name] = {"lines": lines, **part.more, "seconds": round(time.perf_counter() - started)}
        results["settings"] = {
            "images": options.images,
            "repeats": options.repeats,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
