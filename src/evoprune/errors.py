"""Every error of the package, as a hierarchy.

    EvopruneError
    ├── ExpressionError        a function's text or tree
    │   ├── ParseError           the text is not in the language
    │   └── ShapeError           the text is, but its shapes do not fit
    ├── ScoringError           data that cannot be scored
    │   └── MissingOperandError  the function reads something that was not given
    ├── NetworkError           a network that cannot be followed or cut
    │   ├── SiteError            a site that does not exist, or that cannot be cut
    │   │   └── SiteNameError      (also a ConfigError) no site has this name
    │   ├── TargetError          a ratio or cost target out of reach
    │   └── SurgeryError         a cut that failed its verification
    ├── SavedFileError         a file of ours that is damaged, altered or foreign
    ├── DataError              a data set that does not exist, or does not fit
    │   └── DataNameError        (also a ConfigError) no data set has this name
    ├── TrainingError          a training that went wrong
    ├── ConfigError            a configuration that cannot be used
    ├── RunError               a run on disk that cannot be used
    │   └── RunNameError         (also a ConfigError) no run has this name, or it cannot be one's
    └── MissingExtraError      an optional part of the package that is not installed

A message says what was expected, what came, what the valid choices are, and where. On the command line
`ConfigError`, `ExpressionError`, `TargetError` and `MissingOperandError` are wrong usage (exit code 2): what
was asked for cannot be. Everything else is a failure (exit code 1).
"""

from __future__ import annotations


class EvopruneError(Exception):
    """The root of the hierarchy: catches every error this package raises on purpose."""


class ExpressionError(EvopruneError, ValueError):
    """A function's text or tree cannot be used."""


class ParseError(ExpressionError):
    """The text is not in the language."""


class ShapeError(ExpressionError):
    """The text is in the language, but its shapes do not fit together."""


class ScoringError(EvopruneError, ValueError):
    """The data given cannot be scored."""


class MissingOperandError(ScoringError):
    """The function reads an operand that was not given."""


class NetworkError(EvopruneError):
    """A network cannot be followed or cut."""


class SiteError(NetworkError, ValueError):
    """A site does not exist, or cannot be cut."""


class TargetError(NetworkError, ValueError):
    """A ratio or a cost target is out of reach."""


class SurgeryError(NetworkError):
    """A cut failed its verification; the message names the site."""


class SavedFileError(EvopruneError):
    """A file of ours is damaged, altered or foreign."""


class DataError(EvopruneError, ValueError):
    """A data set does not exist, or does not fit."""


class TrainingError(EvopruneError):
    """A training went wrong."""


class ConfigError(EvopruneError, ValueError):
    """A configuration cannot be used."""


class RunError(EvopruneError):
    """A run on disk cannot be used."""


class MissingExtraError(EvopruneError, ImportError):
    """An optional part of the package is not installed; says what to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed: pip install 'evoprune[{extra}]'")


class SiteNameError(SiteError, ConfigError):
    """No site of the network has this name."""


class DataNameError(DataError, ConfigError):
    """No data set has this name."""


class RunNameError(RunError, ConfigError):
    """No run has this name, or a new run cannot have it."""
