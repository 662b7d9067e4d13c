"""From scores to the channels that a task keeps, by the rule of its cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from evoprune.errors import SiteError, SiteNameError
from evoprune.pruning.select import Rule, checked_scores, choose, select, site_counts
from evoprune.pruning.sites import hint
from evoprune.pruning.surgery import Surgeon
from evoprune.tasks.results import Kept
from evoprune.tasks.settings import Cut


def surgeon_of(network: nn.Module, example: torch.Tensor, cut: Cut) -> Surgeon:
    """The surgeon of a network for this kind of cut."""
    surgeon = Surgeon(
        network,
        example,
        selection=cut.selection,
        ignore=cut.ignore,
        flatten_features=cut.flatten_features,
    )
    if not surgeon.sites:
        raise SiteError(f"the network {type(network).__name__} has no site where channels could be removed")
    return surgeon


def kept_by(surgeon: Surgeon, cut: Cut, scores: Mapping[str, Any], *, sampled: bool = False) -> Kept:
    """The channels that these scores keep; where they are all alike, the first ones."""
    checked = dict(checked_scores(surgeon.sites, scores))
    given = {name: torch.from_numpy(values) for name, values in checked.items()}
    constant = tuple(name for name, values in checked.items() if is_constant(values))
    # Rounding must not decide where the function does not.
    checked |= {name: np.zeros_like(checked[name]) for name in constant}
    if cut.scope == "global":
        kept = select(surgeon.sites, checked, _rule(cut), _share(surgeon, cut))
    else:
        kept = choose(surgeon.sites, checked, counts(surgeon, cut))
    return Kept(kept, constant, sampled, given)


def is_constant(scores: npt.NDArray[np.float64]) -> bool:
    """Whether a site's scores are alike up to rounding."""
    return bool(np.ptp(scores) <= 1e-9 * np.abs(scores).max())


def counts(surgeon: Surgeon, cut: Cut) -> dict[str, int]:
    """How many channels each site keeps; no function has a say in it."""
    if not cut.kept:
        _rule(cut).check(surgeon.sites)
        return site_counts(surgeon.sites, _rule(cut), _share(surgeon, cut))
    channels = {site.name: site.channels for site in surgeon.sites}
    for name, count in cut.kept.items():
        if name not in channels:
            raise SiteNameError(f"cut.kept names an unknown site {name!r}{hint(name, list(channels))}")
        if count > channels[name]:
            raise SiteError(f"cut.kept: site {name!r} has {channels[name]} channels, {count} cannot stay")
    return channels | dict(cut.kept)


def costs(network: nn.Module, example: torch.Tensor, cut: Cut) -> tuple[tuple[int, int], tuple[int, int]]:
    """Multiply-accumulates and parameters, before and after a cut; nothing is cut for it."""
    surgeon = surgeon_of(network, example, cut)
    return surgeon.costs.totals({}), surgeon.costs.totals(counts(surgeon, cut))


def _rule(cut: Cut) -> Rule:
    target = cut.flops if cut.flops is not None else cut.params
    return Rule(cut.ratio, target, cut.scope, dict(cut.per_site))


def _share(surgeon: Surgeon, cut: Cut) -> Any:
    """What `select` asks: how much of the cost is gone where the sites keep so many channels."""
    which = 0 if cut.flops is not None else 1
    whole = surgeon.costs.totals({})[which]
    return lambda kept: 1 - surgeon.costs.totals(kept)[which] / whole
