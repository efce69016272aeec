"""Tiny models and tokenizers, built here: no hub, no network, no GPU; and the projects of the command-line tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import imported_first  # noqa: F401
import source_metadata  # noqa: F401  # before everlearn looks for its plugins

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; two threads that wait for each other take 20 times as long
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if os.access(MEMORY := "/dev/shm", os.W_OK):  # pytest's folders are there: a tiny run writes some 300 files
    there = os.statvfs(MEMORY)
    if there.f_bavail * there.f_frsize > 4e9 and not there.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

import pytest
from transformers.trainer_utils import enable_full_determinism

import everlearn.learner
import tiny
from cli_project import Project
from everlearn.tasks import samples
from long_files_first import pytest_collection_modifyitems
from quick_loading import with_copies, with_peaks, without_first_weights, without_searches, without_stack_traces

__all__ = ["pytest_collection_modifyitems"]

if not tiny.USE_CPU:
    enable_full_determinism(0)  # a resumed run is compared with another bit for bit, which a CPU gives anyway

SHORT, LONG = 4, samples._WRITTEN
"""Tokens of a text that a model writes to be read."""


@pytest.fixture(scope="session", autouse=True)
def no_collections_of_imports() -> Iterator[None]:
    """Collect garbage from now on, but seldom, and not among what was imported."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def cheap_collections(no_collections_of_imports: None) -> None:
    """Keep collections from walking through what earlier files left alive.

    That walk would be over half of a tiny stage's time, and longer with each file of tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_collections_of_trainings() -> Iterator[None]:
    """Accelerate collects garbage before and after each training, which takes a tenth of a tiny one's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are not flushed to the disk: no test cuts the power, and a tiny run waits for it a quarter of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def quickly_loaded_models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_first_weights(patch.setattr)
        without_stack_traces(patch.setattr)
        without_searches(patch.setattr)
        with_copies(patch.setattr)
        with_peaks(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_samples() -> Iterator[None]:
    """Of the texts that a run's models write to be read, the first tokens: all take as long as half of its training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "_WRITTEN", SHORT)
        yield


@pytest.fixture(scope="module")
def long_samples() -> Iterator[None]:
    """Texts as long as users read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "_WRITTEN", LONG)
        yield


@pytest.fixture
def signals_as_in_a_terminal() -> Iterator[None]:
    """Undo what a test run under `nohup`, or in the background of a script, inherits: ignored signals stay ignored.

    Nor does anything listen to the garbage collector: what a signal raises in a listener, such as hypothesis adds, is
    ignored.
    """
    listening = gc.callbacks[:]
    gc.callbacks.clear()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    gc.callbacks[:] = listening
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE of 384 tokens with <s> </s> <pad> <mask> <unk>."""
    return tiny.tokenizer()


@pytest.fixture
def make_model():
    """`make_model("roberta")` → a random two-layer model of that architecture in float32, dropout as asked."""
    return tiny.model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tiny models by architecture, each with the tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("roberta", "llama", "t5"):
        tiny.model(name, dropout=0.1).save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """The folder of a finished run of the small project's recipe, for tests that copy it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        project = Project(folder, models, None)
        assert project("run", "recipe.yaml").code == 0
    return project.run_folder


@pytest.fixture
def everlearn(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Project:
    """A small project in a folder of its own, and `everlearn` called in it."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, models, capfd)


@pytest.fixture(scope="module")
def no_report() -> Iterator[None]:
    """Leave out the HTML pages of whole runs: a page takes as long as all the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everlearn.report.write_report", lambda *_: None)
        yield
