"""The journal: what was recorded is found again, and a torn end is noticed, dropped and said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoprune.errors import RunError
from evoprune.runs import journal as journals
from evoprune.runs.journal import BEGINNING, Journal, comparable, line_of, read

records = st.lists(
    st.fixed_dictionaries(
        {
            "event": st.sampled_from(["fitness", "born", "note"]),
            "generation": st.integers(-2, 9),
            "index": st.integers(0, 99),
            "text": st.text(max_size=9),
            "fitness": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        }
    ).map(lambda record: {"event": record["event"], **record}),
    min_size=1,
    max_size=5,
)


def new(folder: Path, lines: bytes = b"") -> Path:
    path = folder / "journal.jsonl"
    path.write_bytes(lines)
    return path


@given(records)
def test_what_is_appended_is_read(tmp_path_factory: pytest.TempPathFactory, given: list[dict]) -> None:
    path = new(tmp_path_factory.mktemp("journal"))
    with Journal(path) as journal:
        journal.append(*given[:1])
        journal.append(*given[1:])
    assert list(read(path).records) == given
    assert read(path).torn == 0


@given(records, st.data())
def test_cut_at_any_byte_the_whole_lines_survive(
    tmp_path_factory: pytest.TempPathFactory, given: list[dict], data: st.DataObject
) -> None:
    lines = [line_of(record) for record in given]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path = new(tmp_path_factory.mktemp("journal"), whole[:cut])
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    intact = max(count for count, end in enumerate(ends) if end <= cut)
    with Journal(path) as journal:
        assert list(journal.records) == given[:intact]
        assert journal.torn == cut - ends[intact]
        journal.append(*given[intact:])
    assert path.read_bytes() == whole, "the torn end is gone, and what follows stands in its place"


def test_nothing_of_a_long_torn_end_is_left_behind_a_short_line(tmp_path: Path) -> None:
    path = new(tmp_path, line_of({"event": "note", "generation": 0, "index": 0, "text": "x" * 999})[:-9])
    with Journal(path) as journal:
        journal.append({"event": "note", "generation": 0, "index": 1})
    assert read(path).records == ({"event": "note", "generation": 0, "index": 1},)
    assert read(path).torn == 0


@given(records, st.data())
def test_a_flipped_bit_in_the_last_line_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, given: list[dict], data: st.DataObject
) -> None:
    lines = [line_of(record) for record in given]
    first = len(BEGINNING) if len(lines) == 1 else 0  # what does not begin like a journal is no torn one
    at = data.draw(st.integers(first, len(lines[-1]) - 1))
    last = bytearray(lines[-1])
    last[at] ^= 1 << data.draw(st.integers(0, 6))
    path = new(tmp_path_factory.mktemp("journal"), b"".join([*lines[:-1], bytes(last)]))
    assert list(read(path).records) == given[:-1]


def test_damage_before_intact_lines_is_refused_with_its_line(tmp_path: Path) -> None:
    lines = [line_of({"event": "note", "generation": 0, "index": index}) for index in range(3)]
    path = new(tmp_path, lines[0] + lines[1].replace(b"note", b"nose") + lines[2])
    with pytest.raises(RunError, match=r"line 2 of .*is damaged"):
        read(path)


def test_a_full_disk_is_said_and_leaves_the_journal_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ({"event": "note", "generation": 0, "index": index} for index in range(2))
    path = new(tmp_path)
    journal = Journal(path)
    journal.append(first)
    pwrite = os.pwrite

    def half(file: int, data: bytes, offset: int) -> int:
        if offset > len(line_of(first)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(file, data[: len(data) // 2], offset)

    monkeypatch.setattr(journals.os, "pwrite", half)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        journal.append(second)
    monkeypatch.undo()
    assert path.read_bytes() == line_of(first)
    journal.append(second)
    journal.close()
    assert list(read(path).records) == [first, second]


def test_a_journal_that_is_removed_meanwhile_is_missed(tmp_path: Path) -> None:
    path = new(tmp_path)
    with Journal(path) as journal:
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(RunError, match="was removed or replaced"):
            journal.append({"event": "note", "generation": 0, "index": 0})
        (tmp_path / "elsewhere").rename(path)
        journal.append({"event": "note", "generation": 0, "index": 0})
    assert len(read(path).records) == 1


def test_equal_runs_compare_equal_whatever_the_order_times_and_notes() -> None:
    a = {"event": "fitness", "generation": 1, "index": 0, "fitness": 0.5}
    b = {"event": "fitness", "generation": 1, "index": 1, "fitness": 0.25}
    note = {"event": "note", "generation": 1, "index": 9, "text": "a worker died"}
    assert comparable([a | {"at": "now"}, b]) == comparable([b | {"seconds": 3}, note, a | {"elapsed": 2}])
    assert comparable([a, b]) != comparable([a, b | {"fitness": 0.26}])
    assert comparable([a, b]) != comparable([a])
