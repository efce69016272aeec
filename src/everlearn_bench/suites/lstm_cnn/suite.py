"""The suite `lstm-cnn` for grids and pages."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from everlearn.grid.template import System
from everlearn.methods.sequential import PLAIN
from everlearn_bench.suites import cache
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.lstm_cnn.learning import Body, learn_tasks

VARIABLE = "EVERLEARN_LSTM_CNN"
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to a folder with `tasks/NAME/{{train,test}}.jsonl.gz` of subj, "
    "trec, sst2 and agnews, rows of `text` and `label`."
)
PARTS = ("train", "test")
_SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {"model_type": "everlearn-lstm", **_SMALL, "intermediate_size": 64, "pooling": "last"}),
    "cnn-max": ("CNN, max-pooling", {"model_type": "everlearn-cnn", **_SMALL, "pooling": "max"}),
    "cnn-mean": ("CNN, mean-pooling", {"model_type": "everlearn-cnn", **_SMALL, "pooling": "mean"}),
    "cnn-last": ("CNN without pooling", {"model_type": "everlearn-cnn", **_SMALL, "pooling": "last"}),
    "transformer": (
        "Transformer",
        {"model_type": "llama", **_SMALL, "num_attention_heads": 4, "num_key_value_heads": 4}
        | {"max_position_embeddings": 128},
    ),
}
"""Row → title and shape of its body: 35,000 to 37,000 parameters without the embeddings."""
FROZEN = ("lstm", "cnn-max")
"""Rows that exist with frozen embeddings too, as `<row>-frozen`."""


def _system(title: str, body: Body) -> System:
    return System(title, ({"name": PLAIN},), "https://aclanthology.org/U19-1011", make=partial(learn_tasks, body))


SYSTEMS = {name: _system(title, Body(shape, frozen=False)) for name, (title, shape) in BODIES.items()} | {
    f"{name}-frozen": _system(f"{BODIES[name][0]}, frozen embeddings", Body(BODIES[name][1], frozen=True))
    for name in FROZEN
}


OWN: dict[str, dict[str, Any]] = {
    "subj": {"majority": 0.5, "state_of_the_art": 0.955},
    "trec": {"majority": 0.188, "state_of_the_art": 0.9807},
    "sst2": {"majority": 0.5, "state_of_the_art": 0.949, "epochs": 2, "max_train": 4000},
    "agnews": {"majority": 0.25, "state_of_the_art": 0.9555},
}
"""Options of the tasks. Accuracies are the study's, but for sst2 BERT-large's in GLUE, and for agnews XLNet's."""


@register_suite
class LstmCnn(Suite):
    """Three tasks of the study (Arora, Rahimi and Baldwin, ALTA 2019), with sst2 in place of SST-5 as the hard one."""

    name = "lstm-cnn"
    orders = {0: ("subj", "trec", "sst2"), 1: ("sst2", "trec", "subj")}  # noqa: RUF012 - see Suite
    order_names = {"hard-last": 0, "hard-first": 1}  # noqa: RUF012
    systems = SYSTEMS
    groups = {"all": tuple(SYSTEMS)}  # noqa: RUF012
    metrics = ("accuracy",)

    def begin(self, raw: dict[str, Any]) -> None:
        """Set the options of each task."""
        for task in raw["end_tasks"]:
            task |= OWN[task["name"]]

    def locate(self, inside: str) -> Path:
        """Return the file of a part of a task."""
        self.check_address(inside, (f"{task}/{part}.jsonl.gz" for task in self.domains for part in PARTS))
        return cache.data_folder(self.name, VARIABLE, HOW, self.data) / "tasks" / inside


@register_suite
class LstmCnnFour(LstmCnn):
    """The same with a fourth task: agnews, in place of the study's CoLA."""

    name = "lstm-cnn-four"
    orders = {0: ("subj", "agnews", "trec", "sst2"), 1: ("sst2", "trec", "agnews", "subj")}  # noqa: RUF012
