"""Torch-Pruning's importances by name, so that they can be compared with functions like for like."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from evoprune.config import unknown_key
from evoprune.errors import ExpressionError
from evoprune.expression.check import check_scalar
from evoprune.expression.library import resolve

if TYPE_CHECKING:
    from evoprune.tasks.task import Task

# name → class of torch_pruning.importance, its arguments, whether it reads gradients
IMPORTANCES: dict[str, tuple[str, Mapping[str, Any], bool]] = {
    "tp_l1": ("MagnitudeImportance", {"p": 1}, False),
    "tp_l2": ("MagnitudeImportance", {"p": 2}, False),
    "tp_bn_scale": ("BNScaleImportance", {}, False),
    "tp_fpgm": ("FPGMImportance", {}, False),
    "tp_lamp": ("LAMPImportance", {}, False),
    "tp_taylor": ("TaylorImportance", {}, True),
}


def check_method(name: str) -> None:
    """Refuse what is neither an importance nor a function that gives a score, before anything is trained."""
    if name in IMPORTANCES:
        return
    if name.startswith("tp_"):
        raise ExpressionError(unknown_key(name, IMPORTANCES, what="importance of Torch-Pruning"))
    expr = resolve(name).expr
    if expr is not None:
        check_scalar(expr)


def importance_scores_of(task: Task, name: str) -> Mapping[str, Tensor]:
    """The scores `[channel]` that an importance gives each site of a task's base network."""
    import torch_pruning

    from evoprune.integrations.torch_pruning import importance_scores

    kind, arguments, gradients = IMPORTANCES[name]
    network = task.base().network
    if gradients:
        # On a copy: the gradients of the mean loss over the scoring images stay in the parameters.
        network = copy.deepcopy(network).requires_grad_(True)
        for images, labels in task.scoring.ordered(500):
            loss = functional.cross_entropy(network(images), labels, reduction="sum") / len(task.scoring)
            loss.backward()  # type: ignore[no-untyped-call]
    importance = getattr(torch_pruning.importance, kind)(**arguments)
    found: Mapping[str, Tensor] = importance_scores(importance, network, task.example(), task.surgeon.sites)
    return found
