"""The examples on the page about pruning run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "pruning-your-network.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "pruned by xi_star" in shown
    assert "conv1: 16 channels of conv1, read by layer1.0.conv1" in shown
