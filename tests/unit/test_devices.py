"""What a run asks of a GPU, on a machine that has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cli_project import Project
from everlearn.errors import RecipeError
from everlearn.learner import ContinualLearner
from everlearn.methods.masks.mofo import largest_entries
from everlearn.model.vocabulary_head import running_sums
from everlearn.predictors.decoding import Ending
from everlearn.run.devices import check_devices

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Whatever the test chooses, the others have what they had."""
    before, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn
    kept, known = (cudnn.deterministic, cudnn.benchmark), os.environ.get(CUBLAS)
    yield
    torch.use_deterministic_algorithms(before)
    cudnn.deterministic, cudnn.benchmark = kept
    os.environ.pop(CUBLAS, None) if known is None else os.environ.update({CUBLAS: known})


@pytest.fixture
def one_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)


def test_more_processes_than_accelerators_are_refused_before_any_work(
    everlearn: Project, one_accelerator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    done = everlearn("run", "recipe.yaml")
    assert done.code == 2
    said = "this machine has 1 for 2 processes. Start no more than 1 (`torchrun --nproc-per-node 1`), or set"
    assert said in " ".join(done.err.split())
    assert "`train.use_cpu: true`" in done.err
    assert not everlearn.run_folder.exists()


def test_as_many_are_taken_and_a_cpu_takes_any_number(one_accelerator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    check_devices(cpu=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    check_devices(cpu=True)
    with pytest.raises(RecipeError, match="has 1 for 4 processes"):
        check_devices(cpu=False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    check_devices(cpu=False)


def test_determinism_begins_with_the_run(finished_run: Path, deterministic: None) -> None:
    """cuBLAS reads its setting at the first product, which is before the first Trainer is made."""
    torch.use_deterministic_algorithms(False)
    os.environ.pop(CUBLAS, None)
    recipe = ContinualLearner.open(finished_run).recipe
    assert not torch.are_deterministic_algorithms_enabled()
    train = recipe.model_dump(exclude_unset=True)["train"]
    ContinualLearner(recipe.changed(train={**train, "full_determinism": True}))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ[CUBLAS] == ":16:8"


def test_tokens_are_drawn_alike_by_deterministic_sums(deterministic: None) -> None:
    torch.manual_seed(0)
    likely, draws = torch.log_softmax(torch.randn(4, 50), -1), torch.rand(4, 1, dtype=torch.float64)
    found = []
    for strict in (False, True):
        torch.use_deterministic_algorithms(strict)
        found.append(Ending(1, temperature=1, draws=draws).choose(likely, []))
    assert torch.equal(*found)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert running_sums(torch.empty(2, 3, device="cuda")).device.type == "cuda"


def test_earlier_models_are_where_the_tested_one_is(finished_run: Path) -> None:
    """A method's ensemble of `reading.checkpoints` reads batches that are on the scorer's device."""
    learner = ContinualLearner.open(finished_run)
    scorer = learner.scorer()
    scorer.device = torch.device("meta")
    reading = scorer._reading(1, None, lambda: learner.some_model(), lambda: scorer._blocks(None))
    assert {parameter.device.type for parameter in reading.checkpoints[0].parameters()} == {"meta"}
    assert {parameter.device.type for parameter in learner.checkpoints(1)[0].parameters()} == {"cpu"}


def test_the_largest_entries_need_no_kernel_that_is_refused() -> None:
    """`kthvalue` has no deterministic form on a GPU; ties at the smallest are all taken, as before."""
    assert largest_entries(torch.tensor([3.0, -3.0, 1.0, 2.0, -2.0]), 0.6).tolist() == [1, 1, 0, 1, 1]
    assert largest_entries(torch.zeros(3), 0.5).tolist() == [0, 0, 0]
