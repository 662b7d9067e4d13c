"""Files that are there whole or not at all: written aside, then renamed; tensors without pickle.

A saved object is a folder of `NAME.json`, which says what it is, and `NAME.safetensors`, whose digest the
JSON holds together with its own: truncated, altered and foreign files are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evoprune.errors import SavedFileError

if TYPE_CHECKING:
    from torch import Tensor


def write(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write aside, then rename: afterwards the file is the old one or the new one, whole.

    `sync` also makes it survive a loss of power.
    """
    data = content.encode() if isinstance(content, str) else content
    # Machines that share a disk may have processes of one number.
    aside = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
        if sync:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(
    folder: Path, name: str, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Save tensors, with facts as JSON, as an object of a kind."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    # safetensors takes dense tensors that share no memory.
    content = save({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()})
    write(folder / f"{name}.safetensors", content)
    header = {"format": kind, "digest": _digest(content, facts), **facts}
    write(folder / f"{name}.json", json.dumps(header, indent=1, allow_nan=False) + "\n")


def load_tensors(folder: Path, name: str, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a saved object; raises SavedFileError where they are not as written."""
    from safetensors.torch import load

    header_path, content_path = folder / f"{name}.json", folder / f"{name}.safetensors"
    try:
        facts = json.loads(header_path.read_text(encoding="utf-8"))
        content = content_path.read_bytes()
    except (OSError, ValueError) as error:
        raise SavedFileError(f"{folder} holds no readable {kind}: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != kind:
        found = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise SavedFileError(f"{header_path} should say the format {kind!r}, it says {found!r}")
    del facts["format"]
    if facts.pop("digest", None) != _digest(content, facts):
        raise SavedFileError(
            f"{header_path} and {content_path.name} are not as they were written: "
            "one of them is truncated, altered or of another object"
        )
    return dict(load(content)), facts


def _digest(content: bytes, facts: Mapping[str, Any]) -> str:
    plain = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
    return blake2b(content + plain, digest_size=16).hexdigest()
