"""evoprune: evolve closed-form channel-pruning functions, and prune networks with them.

The public names are loaded when first used, so that `import evoprune` costs nothing and the
expression language works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evoprune.errors import EvopruneError as EvopruneError

__version__ = "0.1.0"

# public name → module that defines it
_HOME = {
    "EvopruneError": "evoprune.errors",
}

__all__ = ["EvopruneError"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evoprune' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
