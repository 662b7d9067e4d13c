"""Prune a network: score its channels, choose which to keep, cut, verify."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evoprune.errors import NetworkError, ScoringError, SiteError, TargetError
from evoprune.plain import plain
from evoprune.pruning.cost import Cost, measure_latency
from evoprune.pruning.inputs import example_of
from evoprune.pruning.recalibrate import recalibrate as recalibrate_norms
from evoprune.pruning.select import Kept, Rule, check_count, checked_scores, select
from evoprune.pruning.sites import Site, find_sites
from evoprune.pruning.surgery import Surgeon, need_weights
from evoprune.pruning.table import table_of

# network, its sites → scores by site
Scorer = Callable[[nn.Module, Sequence[Site]], Mapping[str, Any]]


@dataclass(frozen=True)
class Pruned:
    """A pruned network and how it came about.

    `kept` are the channels that each site keeps, by their number in the original network; `scores` are
    those that decided, `[channel]` by site (of an iterative pruning: of the last step, not-a-number where
    a channel was already gone). `made` says from what: function, targets, data, seed.
    """

    network: nn.Module
    kept: Mapping[str, tuple[int, ...]]
    scores: Mapping[str, Tensor]
    before: Cost
    after: Cost
    sites: tuple[Site, ...]
    made: Mapping[str, Any]
    original: nn.Module = field(repr=False)
    example_inputs: Any = field(repr=False)

    @property
    def flops_removed(self) -> float:
        """The share of multiply-accumulates that is gone."""
        return 1 - self.after.macs / self.before.macs

    @property
    def params_removed(self) -> float:
        """The share of parameters that is gone."""
        return 1 - self.after.parameters / self.before.parameters

    def save(self, directory: str | Path) -> Path:
        """Write the network and its record into a folder; `evoprune.load_pruned` reads it back."""
        from evoprune.pruning.saving import save_pruned

        return save_pruned(self, directory)

    def export_onnx(self, path: str | Path) -> Path:
        """Write the network as ONNX, checked against onnxruntime (extra `onnx`)."""
        from evoprune.pruning.export import export_onnx

        return export_onnx(self.network, self.example_inputs, path)

    def __rich__(self) -> Any:
        return table_of(self)

    def __str__(self) -> str:
        return plain(table_of(self), width=110).rstrip("\n")


def prune(
    model: nn.Module,
    function_or_scores: Any,
    data: Any = None,
    *,
    example_inputs: Any = None,
    ratio: float | None = None,
    flops: float | None = None,
    params: float | None = None,
    scope: str = "site",
    per_site: Mapping[str, float] | None = None,
    ignore: Collection[str] = (),
    selection: bool = False,
    flatten_features: Collection[str] = (),
    round_to: int | None = None,
    steps: int = 1,
    recalibrate: Any = False,
    latency: bool = False,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Pruned:
    """Remove the channels that a function scores lowest; the model itself is left as it is.

    function_or_scores: a function (its name in the library, its text or an `Expr`), scores by site
        (`{name: [channel]}`), or an importance of Torch-Pruning. A higher score is a more important channel.
    data: what functions of feature maps are scored on: (images, labels), or batches of them.
    example_inputs: a tensor, tuple or dict to follow the network with; taken from the data unless given.
    ratio, flops, params: the share of each site's channels, of the multiply-accumulates or of the
        parameters to remove; exactly one of the three (or `per_site` alone).
    scope: "site" removes the same ratio at each site, "global" all channels below one threshold.
    per_site: ratios of single sites, {name: ratio}.
    ignore: names of sites to leave whole.
    selection: residual streams keep their width, and each block chooses the channels it reads.
    flatten_features: fully connected layers that choose among flattened features (see `sites`).
    round_to: keep numbers of channels that are multiples of this (rounded up).
    steps: reach the target in so many equal steps, scoring what is left anew before each.
    recalibrate: average the batch-norm statistics anew afterwards, over these data (True: over `data`).
    latency: measure the time of a forward pass before and after, on the example inputs.
    device: where the scoring runs. seed: of everything that is drawn.
    """
    check_count("steps", steps)
    asked = {"ratio": ratio, "flops": flops, "params": params}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1 or not (given or per_site):
        raise TargetError(
            "exactly one of ratio=, flops= and params= says how much to remove (or per_site= alone), "
            f"got {' and '.join(given) or 'none'}"
        )
    rule = Rule(ratio, flops if flops is not None else params, scope, per_site, round_to)
    rule.check_numbers()
    if recalibrate is True and data is None:
        raise NetworkError(
            "recalibrate=True averages over `data`, and there are none; recalibrate=batches does"
        )
    if example_inputs is None:
        example_inputs = example_of(data)
    surgeon = Surgeon(
        model, example_inputs, selection=selection, ignore=ignore, flatten_features=flatten_features
    )
    if not surgeon.sites:
        reasons = dict.fromkeys(what for _, what in surgeon.structure.trace.complaints)
        raise SiteError(
            "the network has no site whose channels can be removed" + "".join(f"\n  {r}" for r in reasons)
        )
    rule.check(surgeon.sites)
    need_weights(model)
    scorer, what = _scorer(function_or_scores, surgeon, data, device=device, seed=seed)
    if steps > 1 and what["scores"] == "given":
        raise ScoringError(
            "steps= scores the network anew before each step; that needs a function, not scores"
        )

    share = _share(surgeon, by_parameters=params is not None)
    whole: Kept = {site.name: tuple(range(site.channels)) for site in surgeon.sites}
    kept, network = whole, model
    scores: dict[str, Any] = {}
    for step in range(1, steps + 1):
        scores = _scores(scorer, network, surgeon, kept, scores, first=step == 1)
        kept = select(surgeon.sites, _floored(scores), _partial(rule, step / steps), share)
        network = surgeon.cut(kept)
    before, after = surgeon.costs.cost({}), surgeon.costs.cost({n: len(c) for n, c in kept.items()})
    if recalibrate is not False and recalibrate is not None:
        recalibrate_norms(network, data if recalibrate is True else recalibrate)
    if latency:
        before = replace(before, latency=measure_latency(model, example_inputs))
        after = replace(after, latency=measure_latency(network, example_inputs))
    made = {
        **what,
        **{
            key: value
            for key, value in {
                **{name: float(value) for name, value in asked.items() if value is not None},
                "scope": scope,
                "per_site": {name: float(ratio) for name, ratio in (per_site or {}).items()} or None,
                "round_to": None if round_to is None else int(round_to), "steps": int(steps),
                "ignore": list(surgeon.ignore) or None, "selection": bool(selection), "seed": seed,
                "flatten_features": list(surgeon.flatten_features) or None,
                "recalibrated": recalibrate is not False and recalibrate is not None,
                "data": _fingerprint(data),
            }.items()
            if value is not None
        },
    }  # fmt: skip
    return Pruned(
        network=network,
        kept=kept,
        scores={name: torch.from_numpy(values.copy()) for name, values in scores.items()},
        before=before,
        after=after,
        sites=surgeon.sites,
        made=made,
        original=model,
        example_inputs=example_inputs,
    )


def _partial(rule: Rule, part: float) -> Rule:
    """The rule for a part of the way."""

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * part

    per_site = {name: value * part for name, value in rule.per_site.items()} if rule.per_site else None
    return replace(rule, ratio=scaled(rule.ratio), target=scaled(rule.target), per_site=per_site)


def _share(surgeon: Surgeon, *, by_parameters: bool) -> Callable[[Mapping[str, int]], float]:
    full = surgeon.costs.totals({})[by_parameters]
    return lambda counts: 1 - surgeon.costs.totals(counts)[by_parameters] / full


def _floored(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Channels that are gone score below all others, so that they stay gone."""
    floor = min(float(np.nanmin(values)) for values in scores.values()) - 1.0
    return {name: np.where(np.isnan(values), floor, values) for name, values in scores.items()}


def _scores(
    scorer: Scorer, network: nn.Module, surgeon: Surgeon, kept: Kept, last: Mapping[str, Any], *, first: bool
) -> dict[str, Any]:
    """Scores `[channel]` of every site, numbered as in the original; not-a-number where a channel is gone."""
    if first:
        return dict(checked_scores(surgeon.sites, scorer(network, surgeon.sites)))
    structure = find_sites(network, surgeon.example_inputs, selection=surgeon.selection, lenient=True)
    there = {site.name: site for site in structure.sites}
    # Grouped layers left with one channel per group are depthwise; their sites are no longer there.
    left = [there[site.name] for site in surgeon.sites if site.name in there]
    anew = checked_scores(left, scorer(network, left))
    scores = {}
    for site in surgeon.sites:
        values = np.full(site.channels, np.nan)
        places = list(kept[site.name])
        new = anew.get(site.name)
        values[places] = last[site.name][places] if new is None or len(new) != len(places) else new
        scores[site.name] = values
    return scores


def _scorer(
    given: Any, surgeon: Surgeon, data: Any, *, device: Any, seed: int
) -> tuple[Scorer, dict[str, Any]]:
    """What scores a network's sites, and how to say so in a record."""
    if isinstance(given, Mapping):
        # Scores of sites that are left whole may come along.
        scores = {name: values for name, values in _single(given).items() if name not in surgeon.ignore}
        return lambda network, sites: scores, {"scores": "given"}
    if type(given).__module__.startswith("torch_pruning") or _is_importance(given):
        from evoprune.integrations.torch_pruning import importance_scores

        def by_importance(network: nn.Module, sites: Sequence[Site]) -> Mapping[str, Any]:
            return importance_scores(given, network, surgeon.example_inputs, sites)

        return by_importance, {"scores": "importance", "importance": type(given).__name__}

    from evoprune.expression.library import resolve
    from evoprune.scoring.score import score

    function = resolve(given)
    what: dict[str, Any] = {"scores": "function", "function": function.text, "name": function.name}

    def by_function(network: nn.Module, sites: Sequence[Site]) -> Mapping[str, Any]:
        found = score(network, [function], data, sites=sites, device=device, seed=seed)
        # Streamed over all images, on a sample of them, or from the parameters alone.
        what["modes"] = sorted(set(found.modes[function.name].values()))
        return found[function.name]

    return by_function, what


def _is_importance(given: Any) -> bool:
    return any(base.__module__.startswith("torch_pruning") for base in type(given).__mro__)


def _single(scores: Mapping[str, Any]) -> Mapping[str, Any]:
    """Scores by site; of scores by function and site, those of the one function."""
    values = list(scores.values())
    if values and all(isinstance(value, Mapping) for value in values):
        if len(values) > 1:
            raise SiteError(
                f"scores of one function are needed, got those of {', '.join(map(repr, scores))}; "
                "take one of them: scores[name]"
            )
        only: Mapping[str, Any] = values[0]
        return only
    return scores


def _fingerprint(data: Any) -> str | None:
    """What the data were, as far as it can be told without going through them."""
    if data is None:
        return None
    key = getattr(data, "key", None)
    if callable(key):
        return str(key())
    tensors = [data] if isinstance(data, Tensor) else list(data) if isinstance(data, (tuple, list)) else []
    if not tensors or not all(isinstance(tensor, (Tensor, np.ndarray)) for tensor in tensors):
        return type(data).__name__
    digest = hashlib.sha256()
    for tensor in tensors:
        array = torch.as_tensor(tensor).detach().cpu().contiguous()
        kind = f"{str(array.dtype).removeprefix('torch.')}{tuple(array.shape)}"
        # As bytes: NumPy does not know every type of PyTorch's.
        digest.update(kind.encode() + array.flatten().view(torch.uint8).numpy().tobytes())
    return f"sha256:{digest.hexdigest()}"
