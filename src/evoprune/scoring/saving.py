"""Statistics on disk: safetensors and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from evoprune.errors import EvopruneError, SavedFileError
from evoprune.expression.text import parse
from evoprune.files import load_tensors, save_tensors
from evoprune.scoring.accumulator import Accumulator
from evoprune.scoring.plan import Need
from evoprune.scoring.sample import Sample
from evoprune.scoring.statistics import SiteStatistics, Statistics

KIND = "evoprune statistics 1"
NAME = "statistics"


def save_statistics(statistics: Statistics, folder: str | Path) -> None:
    """Write statistics to a folder."""
    tensors = {"counts": statistics.counts}
    sites: dict[str, Any] = {}
    for number, (name, site) in enumerate(statistics.sites.items()):
        gathered = []
        for place, each in enumerate(site.gathered):
            key = f"{number}.{place}"
            tensors |= {f"{key}.{field}": value for field, value in each.fields.items()}
            tensors[f"{key}.count"] = each.count
            if each.shift is not None:
                tensors[f"{key}.shift"] = each.shift
            need = each.need
            gathered.append(
                {
                    "kind": need.kind,
                    "source": str(need.source),
                    "by_class": need.by_class,
                    "squares": need.squares,
                    "width": each.width,
                    "fields": list(each.fields),
                }
            )
        sites[name] = {"channels": site.channels, "map_size": list(site.map_size), "gathered": gathered}
    sample = statistics.sample
    if sample is not None:
        tensors |= {"sample.images": sample.images, "sample.places": sample.places}
        if sample.classes is not None:
            tensors["sample.classes"] = sample.classes
    facts = {
        "model": statistics.model,
        "data": statistics.data,
        "images": statistics.images,
        "classes": list(statistics.classes),
        "sample_size": statistics.sample_size,
        "seed": statistics.seed,
        "expected_classes": statistics.expected_classes,
        "autocast": statistics.autocast,
        "image": [list(statistics.image[0]), statistics.image[1]],
        "sites": sites,
    }
    save_tensors(Path(folder), NAME, KIND, tensors, facts)


def load_statistics(folder: str | Path) -> Statistics:
    """Read statistics from a folder; raises SavedFileError where they are not as they were written."""
    tensors, facts = load_tensors(Path(folder), NAME, KIND)
    try:
        sites = {
            name: SiteStatistics(
                site["channels"],
                (site["map_size"][0], site["map_size"][1]),
                tuple(
                    _accumulator(each, f"{number}.{place}", tensors)
                    for place, each in enumerate(site["gathered"])
                ),
            )
            for number, (name, site) in enumerate(facts["sites"].items())
        }
        sample = None
        if "sample.images" in tensors:
            sample = Sample(tensors["sample.images"], tensors["sample.places"], tensors.get("sample.classes"))
        return Statistics(
            model=facts["model"],
            data=facts["data"],
            images=facts["images"],
            classes=tuple(facts["classes"]),
            sites=sites,
            sample=sample,
            sample_size=facts["sample_size"],
            seed=facts["seed"],
            counts=tensors["counts"],
            expected_classes=facts["expected_classes"],
            autocast=facts["autocast"],
            image=(tuple(facts["image"][0]), facts["image"][1]),
        )
    except (KeyError, TypeError, IndexError, EvopruneError) as error:
        raise SavedFileError(f"{folder} holds statistics that cannot be understood: {error!r}") from None


def _accumulator(facts: dict[str, Any], key: str, tensors: dict[str, torch.Tensor]) -> Accumulator:
    need = Need(facts["kind"], parse(facts["source"]), facts["by_class"], facts["squares"])
    fields = {field: tensors[f"{key}.{field}"] for field in facts["fields"]}
    return Accumulator(need, tensors[f"{key}.count"], fields, facts["width"], tensors.get(f"{key}.shift"))
