"""evoprune: evolve closed-form channel-pruning functions, and prune networks with them.

The public names are loaded when first used, so that `import evoprune` costs nothing and the
expression language works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evoprune.errors import EvopruneError as EvopruneError
    from evoprune.evolution.search import Run as Run
    from evoprune.evolution.starting import evolve as evolve
    from evoprune.evolution.starting import resume as resume
    from evoprune.expression.check import check as check
    from evoprune.expression.library import functions as functions
    from evoprune.expression.text import parse as parse
    from evoprune.expression.tree import Expr as Expr
    from evoprune.pruning.cost import cost as cost
    from evoprune.pruning.prune import Pruned as Pruned
    from evoprune.pruning.prune import prune as prune
    from evoprune.pruning.saving import load_pruned as load_pruned
    from evoprune.pruning.sites import Site as Site
    from evoprune.pruning.sites import sites as sites
    from evoprune.pruning.surgery import Surgeon as Surgeon
    from evoprune.scoring.arrays import score_arrays as score_arrays
    from evoprune.scoring.plan import plan as plan
    from evoprune.scoring.score import Scores as Scores
    from evoprune.scoring.score import gather as gather
    from evoprune.scoring.score import score as score
    from evoprune.scoring.statistics import Statistics as Statistics
    from evoprune.tasks.task import Task as Task

__version__ = "0.1.0"

# public name → module that defines it
_HOME = {
    "EvopruneError": "evoprune.errors",
    "Expr": "evoprune.expression.tree",
    "Pruned": "evoprune.pruning.prune",
    "Run": "evoprune.evolution.search",
    "Scores": "evoprune.scoring.score",
    "Site": "evoprune.pruning.sites",
    "Statistics": "evoprune.scoring.statistics",
    "Surgeon": "evoprune.pruning.surgery",
    "Task": "evoprune.tasks.task",
    "check": "evoprune.expression.check",
    "cost": "evoprune.pruning.cost",
    "evolve": "evoprune.evolution.starting",
    "functions": "evoprune.expression.library",
    "gather": "evoprune.scoring.score",
    "load_pruned": "evoprune.pruning.saving",
    "parse": "evoprune.expression.text",
    "plan": "evoprune.scoring.plan",
    "prune": "evoprune.pruning.prune",
    "resume": "evoprune.evolution.starting",
    "score": "evoprune.scoring.score",
    "score_arrays": "evoprune.scoring.arrays",
    "sites": "evoprune.pruning.sites",
}

__all__ = [
    "EvopruneError",
    "Expr",
    "Pruned",
    "Run",
    "Scores",
    "Site",
    "Statistics",
    "Surgeon",
    "Task",
    "check",
    "cost",
    "evolve",
    "functions",
    "gather",
    "load_pruned",
    "parse",
    "plan",
    "prune",
    "resume",
    "score",
    "score_arrays",
    "sites",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evoprune' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
