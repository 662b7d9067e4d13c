"""Scores to kept channels: by a ratio, or by what the network may cost.

How many channels each site keeps is settled first, and by the numbers of channels alone (unless one
threshold is laid over all sites); which ones, by the scores. So every function that scores the same sites
gets the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise, product
from math import floor, isfinite, lcm
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from evoprune.errors import SiteError, SiteNameError, TargetError
from evoprune.pruning.sites import Site, hint

Scores: TypeAlias = Mapping[str, npt.NDArray[np.float64]]
Counts: TypeAlias = dict[str, int]
Kept: TypeAlias = dict[str, tuple[int, ...]]
# counts → the share of a cost that is removed, in [0, 1]
Share: TypeAlias = Callable[[Mapping[str, int]], float]

# How far from the target a cost may end.
TOLERANCE = 0.005
# So many joint moves are tried before a target counts as out of reach.
MOST = 5_000


@dataclass(frozen=True, slots=True)
class Rule:
    """How many channels are to go: a ratio of them, or a share of a cost.

    `per_site` fixes the ratio of single sites; `scope` is "site" (the ratio holds at each) or "global" (one
    threshold over all scores). Kept numbers are rounded up to multiples of `round_to`.
    """

    ratio: float | None = None
    target: float | None = None
    scope: str = "site"
    per_site: Mapping[str, float] | None = None
    round_to: int | None = None

    def check(self, sites: Sequence[Site]) -> None:
        """Refuse what cannot be meant."""
        self.check_numbers()
        names = [site.name for site in sites]
        for name in self.per_site or ():
            if name not in names:
                raise SiteNameError(f"per_site names an unknown site {name!r}{hint(name, names)}")

    def check_numbers(self) -> None:
        """The part of the check that needs no network."""
        if self.ratio is not None and self.target is not None:
            raise TargetError("either a ratio or a target says how much to remove, got both")
        if self.ratio is None and self.target is None and not self.per_site:
            raise TargetError("a ratio, a target or ratios per site say how much to remove, got none")
        if self.per_site is not None and not isinstance(self.per_site, Mapping):
            raise TargetError(f"per_site is {{name of a site: ratio}}, got {self.per_site!r}")
        shares = {"the ratio": self.ratio, "the target": self.target}
        shares |= {f"the ratio of site {name!r}": ratio for name, ratio in (self.per_site or {}).items()}
        for what, value in shares.items():
            _check_share(what, value)
        if self.scope not in ("site", "global"):
            raise TargetError(f"scope is 'site' or 'global', got {self.scope!r}")
        if self.round_to is not None:
            check_count("round_to", self.round_to)


def check_count(what: str, value: Any) -> None:
    """Refuse what is no number of things."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise TargetError(f"{what} is a whole number from 1, got {value!r}")


def _check_share(what: str, value: Any) -> None:
    if value is None:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not isfinite(value) or not 0 <= value < 1:
        raise TargetError(f"{what} is the share to remove, in [0, 1), got {value!r}")


def checked_scores(sites: Sequence[Site], scores: Mapping[str, Any]) -> Scores:
    """The scores as `[channel]` arrays; each site has its own, finite and of its length."""
    names = [site.name for site in sites]
    for name in scores:
        if name not in names:
            raise SiteError(f"there are scores for an unknown site {name!r}{hint(str(name), names)}")
    checked = {}
    for site in sites:
        if site.name not in scores:
            raise SiteError(
                f"there are no scores for site {site.name!r}; ignore=[{site.name!r}] leaves it whole"
            )
        values = _numbers(scores[site.name], site)
        if values.shape != (site.channels,):
            raise SiteError(
                f"site {site.name!r} has {site.channels} channels and needs as many scores, "
                f"got shape {list(values.shape)}"
            )
        if not np.isfinite(values).all():
            at = np.flatnonzero(~np.isfinite(values)).tolist()
            raise SiteError(f"the scores of site {site.name!r} are not finite at channels {at[:10]}")
        checked[site.name] = values
    return checked


def _numbers(given: Any, site: Site) -> npt.NDArray[np.float64]:
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = (given if given.is_complex() else given.double()).numpy()
    try:
        values = np.asarray(given)
    except ValueError:  # lists of unequal lengths
        values = np.asarray(given, dtype=object)
    if values.dtype.kind not in "fiub":
        raise SiteError(f"the scores of site {site.name!r} are to be real numbers, got {given!r:.60}")
    return values.astype(np.float64)


def select(sites: Sequence[Site], scores: Scores, rule: Rule, share: Share | None = None) -> Kept:
    """The channels that each site keeps, in ascending order; ties keep the lower index."""
    rule.check(sites)
    if rule.scope == "global":
        counts = _by_threshold(sites, scores, rule, share)
    else:
        counts = site_counts(sites, rule, share)
    return choose(sites, scores, counts)


def site_counts(sites: Sequence[Site], rule: Rule, share: Share | None = None) -> Counts:
    """How many channels each site keeps under one ratio; no scores are looked at."""
    fixed = dict(rule.per_site or {})

    def at(ratios: Mapping[str, float], extra: Mapping[str, int] | None = None) -> Counts:
        return _counts(sites, {**ratios, **fixed}, rule.round_to, extra or {})

    def everywhere(ratio: float) -> dict[str, float]:
        return {site.name: ratio for site in sites}

    if rule.target is None:
        return at(everywhere(rule.ratio or 0.0))
    assert share is not None
    target, low, high = rule.target, 0.0, 1.0
    if share(at(everywhere(high))) < target:
        low = high
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if share(at(everywhere(middle))) < target else (low, middle)
    # The two straddle the target; from one to the other single channels go, in the order of the sites.
    ratios, goal = everywhere(low), everywhere(high)
    steps = [dict(ratios)]
    for site in sites:
        ratios[site.name] = goal[site.name]
        if at(ratios) != at(steps[-1]):
            steps.append(dict(ratios))
    best = min(steps, key=lambda step: abs(share(at(step)) - target))
    free = [site for site in sites if site.name not in fixed]
    return _tuned(free, lambda extra: at(best, extra), share, rule)


def _tuned(
    sites: Sequence[Site], counts_with: Callable[[Mapping[str, int]], Counts], share: Share, rule: Rule
) -> Counts:
    """The counts, with single channels removed or kept until the cost is near enough to the target.

    Site by site and round by round, never by score; `counts_with` gives the counts with so many units
    more removed at some sites (or fewer, where negative). Where every unit is too large a step, some are
    removed at one site against some kept at another.
    """
    target = rule.target
    assert target is not None
    extra: dict[str, int] = {}
    counts = counts_with(extra)
    off = share(counts) - target

    def tried(moves: Sequence[tuple[Site, int]]) -> bool:
        """Make these moves (site, units more removed) if they bring the cost nearer to the target."""
        nonlocal extra, counts, off
        new = dict(extra)
        for site, units in moves:
            new[site.name] = new.get(site.name, 0) + units
        changed = counts_with(new)
        if any(
            changed[site.name] == counts[site.name]
            or not _unit(site, rule.round_to) <= changed[site.name] <= site.channels
            for site, _ in moves
        ):
            return False
        new_off = share(changed) - target
        if nearer := abs(new_off) < abs(off):
            extra, counts, off = new, changed, new_off
        return nearer

    moved = True
    while abs(off) > TOLERANCE and moved:
        moved = False
        for site in sites:
            moved |= tried([(site, 1 if off < 0 else -1)])
            if abs(off) <= TOLERANCE:
                break
        if not moved:
            moved = any(tried(moves) for moves in islice(_joint_moves(sites), MOST))
    if abs(off) > TOLERANCE:
        raise TargetError(
            f"the cost cannot be brought down by {target:.2%} to within {TOLERANCE:.1%}: "
            f"the nearest that can be reached is {target + off:.2%}"
        )
    return counts


def _joint_moves(sites: Sequence[Site]) -> Iterator[Sequence[tuple[Site, int]]]:
    """Units more or fewer at several sites together, the smallest moves first."""
    for total in range(2, sum(site.channels for site in sites)):
        for many in range(2, min(total, len(sites)) + 1):
            for chosen in combinations(sites, many):
                for cuts in combinations(range(1, total), many - 1):
                    sizes = [end - start for start, end in pairwise((0, *cuts, total))]
                    for signs in product((1, -1), repeat=many):
                        units = [sign * size for sign, size in zip(signs, sizes, strict=True)]
                        yield list(zip(chosen, units, strict=True))


def _counts(
    sites: Sequence[Site],
    ratios: Mapping[str, float],
    round_to: int | None,
    extra: Mapping[str, int],
) -> Counts:
    counts: Counts = {}
    for site in sites:
        unit, available = _unit(site, round_to), _available(site, sites, counts)
        kept = _kept(available, ratios[site.name], unit)
        removed = extra.get(site.name, 0)
        counts[site.name] = _stepped(kept, removed, unit, available) if removed else kept
    return counts


def _stepped(kept: int, units: int, unit: int, available: int) -> int:
    """So many units fewer (or more, where negative); all there are need not be a whole number of units."""
    whole = -(-kept // unit) - units
    return min(max(whole, 1) * unit, available)


def _available(site: Site, sites: Sequence[Site], counts: Mapping[str, int]) -> int:
    """How many channels there are to choose from, once those of the sites before are gone."""
    if not site.parents:
        return site.channels
    channels = {other.name: other.channels for other in sites}
    lost = 0
    for name in {parent[0] for parent in site.parents if parent is not None} & counts.keys():
        copies = sum(parent is not None and parent[0] == name for parent in site.parents) // channels[name]
        lost += copies * (channels[name] - counts[name])
    return site.channels - lost


def _unit(site: Site, round_to: int | None) -> int:
    return lcm(site.blocks, round_to or 1)


def _kept(channels: int, ratio: float, unit: int) -> int:
    """All but the ratio's share (never more than asked), rounded up to whole units, at least one."""
    kept = channels - floor(channels * ratio + 1e-9)
    return min(channels, max(1, -(-kept // unit)) * unit)


def choose(sites: Sequence[Site], scores: Scores, counts: Mapping[str, int]) -> Kept:
    """The `counts[site]` channels with the highest scores, equally many from each block."""
    kept: Kept = {}
    there: dict[str, set[int]] = {}
    for site in sites:
        values = scores[site.name]
        free = np.ones(site.channels, dtype=bool)
        for channel, parent in enumerate(site.parents):
            # What a channel is chosen from may be gone.
            if parent is not None and parent[1] not in there.get(parent[0], {parent[1]}):
                free[channel] = False
        run, each = site.channels // site.blocks, counts[site.name] // site.blocks
        chosen: list[int] = []
        for start in range(0, site.channels, run):
            candidates = start + np.flatnonzero(free[start : start + run])
            best = candidates[np.argsort(-values[candidates], kind="stable")[:each]]
            chosen.extend(best.tolist())
        kept[site.name], there[site.name] = tuple(sorted(chosen)), set(chosen)
    return kept


def _by_threshold(sites: Sequence[Site], scores: Scores, rule: Rule, share: Share | None) -> Counts:
    """How many channels of each site lie above one threshold over all scores."""
    for site in sites:
        if site.parents:
            raise SiteError(f"site {site.name!r} chooses among what others keep; that needs scope='site'")
    fixed = rule.per_site or {}
    counts: Counts = {site.name: site.channels for site in sites}
    for site in sites:
        if site.name in fixed:
            counts[site.name] = _kept(site.channels, fixed[site.name], _unit(site, rule.round_to))
    steps = _removals(sites, scores, rule, fixed)
    free = sum(site.channels for site in sites if site.name not in fixed)

    def after(number: int) -> Counts:
        return counts | {name: kept for _, name, kept in steps[:number]}

    def removed(number: int) -> int:
        return free - sum(kept for name, kept in after(number).items() if name not in fixed)

    if rule.target is None:
        budget = floor(free * (rule.ratio or 0.0) + 1e-9)
        number = _last(len(steps), lambda n: removed(n) <= budget)
        return after(number)
    assert share is not None
    target = rule.target
    number = _last(len(steps), lambda n: share(after(n)) <= target)
    around = [after(n) for n in range(number, min(number + 1, len(steps)) + 1)]
    best = min(around, key=lambda counts: abs(share(counts) - target))

    def counts_with(extra: Mapping[str, int]) -> Counts:
        changed = dict(best)
        for site in sites:
            if extra.get(site.name):
                unit = _unit(site, rule.round_to)
                changed[site.name] = _stepped(best[site.name], extra[site.name], unit, site.channels)
        return changed

    return _tuned([site for site in sites if site.name not in fixed], counts_with, share, rule)


def _removals(
    sites: Sequence[Site], scores: Scores, rule: Rule, fixed: Mapping[str, float]
) -> list[tuple[float, str, int]]:
    """Every step down, the lowest threshold first: (threshold, site, how many the site then keeps)."""
    steps = []
    for order, site in enumerate(sites):
        if site.name in fixed:
            continue
        unit, run = _unit(site, rule.round_to), site.channels // site.blocks
        ranks = np.sort(scores[site.name].reshape(site.blocks, run), axis=1)
        kept, threshold = site.channels, -np.inf
        while kept > unit:
            kept = (kept - 1) // unit * unit
            # A step goes once the highest score that it removes is below the threshold.
            threshold = max(threshold, float(ranks[:, run - kept // site.blocks - 1].max()))
            steps.append((threshold, order, -kept, site.name, kept))
    return [(threshold, name, kept) for threshold, _, _, name, kept in sorted(steps)]


def _last(count: int, holds: Callable[[int], bool]) -> int:
    """The last number in 0…count for which a condition holds that holds up to some point."""
    low, high = 0, count + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
