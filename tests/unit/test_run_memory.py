"""The peak of memory is that of a stretch, not of the process's whole life."""

from __future__ import annotations

import mmap

import pytest
import torch

from everlearn.run import peak_memory

LARGE = 64 * 2**20


@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerator's own counter is asked there")
def test_a_later_stretch_does_not_inherit_an_earlier_peak() -> None:
    before = peak_memory.peak_memory()
    peak_memory.reset_peak_memory()
    if not peak_memory._CLEAR.exists():
        pytest.skip("the system does not reset a process's peak")
    quiet = peak_memory.peak_memory()
    # pages of the system's own: an array may be put where an earlier one lay, which takes no new memory
    held = mmap.mmap(-1, LARGE)
    held.write(b"\1" * LARGE)
    assert peak_memory.peak_memory() >= quiet + LARGE * 0.9
    high = peak_memory.peak_memory()
    held.close()
    assert peak_memory.peak_memory() >= high - 0.1 * LARGE, "a peak stays until it is reset"
    peak_memory.reset_peak_memory()
    assert peak_memory.peak_memory() <= high - LARGE * 0.9
    assert before > 0


def test_a_system_without_the_counters_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "none" / "either")
    peak_memory.reset_peak_memory()
    assert peak_memory.peak_memory() > 10 * 2**20
