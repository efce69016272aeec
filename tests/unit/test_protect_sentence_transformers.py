"""Protect the trainer of Sentence Transformers, where it is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from torch import Tensor

import tiny
from everlearn import files
from everlearn.errors import EverlearnError
from everlearn.protecting import protect

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="Sentence Transformers is not installed: pip install 'sentence-transformers[train]'"
)
ROWS = [{"anchor": a, "positive": b} for a, b in zip(tiny.texts(8, 1, 8), tiny.texts(8, 2, 8), strict=True)]


def trainer(root: Path, normalises: bool = False) -> Any:
    disable_progress_bars()
    from sentence_transformers.sentence_transformer import losses, modules

    if not (root / "bert").is_dir():
        tiny.model("bert").bert.save_pretrained(root / "bert")
        tiny.tokenizer().save_pretrained(root / "bert")
    torch.manual_seed(0)
    parts = [modules.Transformer(str(root / "bert")), modules.Pooling(32), modules.Normalize()]
    model = sentence_transformers.SentenceTransformer(modules=parts if normalises else parts[:2], device="cpu")
    return sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            str(root / "out"), max_steps=2, per_device_train_batch_size=4, learning_rate=1e-3, use_cpu=tiny.USE_CPU,
            report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(ROWS),
        loss=losses.MultipleNegativesRankingLoss(model),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["l2", "mas", "si", "migu", "mofo", "mixout", "recadam", "wise_ft"])
def test_a_method_is_at_work_in_two_domains(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        made = protect(trainer(tmp_path), [name], memory=tmp_path / "memory")
        made.train()
    penalties = [line[f"{name}/penalty"] for line in made.state.log_history if f"{name}/penalty" in line]
    assert bool(penalties) == (name in ("l2", "mas", "si"))
    assert all(value > 0 for value in penalties)


def test_mas_reads_the_embeddings_of_each_text(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    protect(made, [{"name": "mas", "samples": 100}], memory=tmp_path / "memory").train()
    exact = copy.deepcopy(made.model).cpu().double().eval()
    wanted = {name: torch.zeros_like(p) for name, p in exact.named_parameters()}
    for row in ROWS:
        exact.zero_grad()
        sizes: list[Tensor] = []
        for text in row.values():
            read = exact.tokenizer([text], return_tensors="pt")
            sizes.append(
                exact({n: read[n] for n in ("input_ids", "attention_mask")})["sentence_embedding"].square().sum()
            )
        torch.stack(sizes).mean().backward()
        for name, p in exact.named_parameters():
            if p.grad is not None:
                wanted[name] += p.grad.abs() / len(ROWS)
    (folder,) = (tmp_path / "memory").iterdir()
    found = files.load_tensors(folder / "mas.safetensors")
    top = max(float(value.max()) for value in wanted.values())
    for name, value in wanted.items():
        torch.testing.assert_close(found[f"importance/{name}"].double(), value, rtol=1e-3, atol=1e-5 * top)


def test_what_cannot_be_measured_is_refused_and_the_advice_works(tmp_path: Path) -> None:
    with pytest.raises(EverlearnError, match=r"'ewc' measures on the loss of single examples.*'mas'.*'l2_sp', 'si'"):
        protect(trainer(tmp_path), ["ewc"], memory=tmp_path / "memory")
    normalised = protect(trainer(tmp_path, normalises=True), ["mas"], memory=tmp_path / "memory")
    with pytest.raises(EverlearnError, match=r"divides embeddings by their length.*'l2_sp' or 'si'"):
        normalised.train()
    assert normalised.state.global_step == 0
    for advised in ("l2_sp", "si"):
        protect(trainer(tmp_path, normalises=True), [advised], memory=tmp_path / advised).train()
    with pytest.raises(EverlearnError, match=r"'kd' reads what a model predicts of text"):
        protect(trainer(tmp_path), ["kd"], memory=tmp_path / "memory")
