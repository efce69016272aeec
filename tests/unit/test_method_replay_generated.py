"""Replay of what the model writes: the samples against a slow reference, lots that are made once, what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Method, Stage
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.rehearsal import generated
from everlearn.methods.rehearsal.generated import FOLDER, _sampled, generated_rows
from everlearn.methods.rehearsal.replay import Replay
from everlearn.seeding import seed_for

START, END = 0, 2
ARCHITECTURES = {"causal": "gpt2", "masked": "roberta"}


def _stage(objective: str = "causal", index: int = 1, **options: object) -> Stage:
    return stages.stage(tiny.model(ARCHITECTURES[objective]), index, objective, **options)


def _drawn(likely: np.ndarray, chance: float) -> int:
    """The first word whose cumulated probability exceeds the chance."""
    total = 0.0
    for word, probability in enumerate(likely / likely.sum()):
        total += probability
        if total > chance:
            return word
    return len(likely) - 1


def _lean_to_the_end(stage: Stage, much: float) -> None:
    stage.model.transformer.ln_f.bias.data = much * stage.model.lm_head.weight.data[END]


def _chances(stage: Stage, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(stage.seed, "generated", stage.index, number))


def _slowly_sampled(stage: Stage, number: int) -> list[int]:
    """One text, word by word, the whole of it read again for each."""
    chances = torch.rand(stages.S - 1, generator=_chances(stage, number), dtype=torch.float64).tolist()
    ids = [START]
    for chance in chances:
        with torch.no_grad():
            logits = stage.model(torch.tensor([ids])).logits[0, -1].double().numpy()
        ids.append(_drawn(np.exp(logits - logits.max()), chance))
        if ids[-1] == END:
            break
    return ids


def test_texts_are_samples_of_the_model() -> None:
    stage = _stage()
    _lean_to_the_end(stage, 200)
    rows, count = generated_rows(stage, wanted=6, sweeps=1)
    texts = [_slowly_sampled(stage, number) for number in range(count)]
    assert any(len(text) < stages.S for text in texts)
    tokens = [token for text in texts for token in text]
    inside = [number for number, text in enumerate(texts) for _ in text]
    for place, row in enumerate(rows):
        here = slice(place * stages.S, (place + 1) * stages.S)
        assert row["input_ids"].tolist() == tokens[here]
        owners = inside[here]
        assert row["segments"].tolist() == [number - owners[0] for number in owners]
    assert len(rows) == 6


def test_a_masked_model_fills_rows_from_its_conditionals() -> None:
    stage, sweeps = _stage("masked"), 2
    rows, _ = generated_rows(stage, wanted=2, sweeps=sweeps)
    inner, mask = stages.S - 2, stage.tokenizer.mask_token_id
    at_once = round(0.15 * inner)
    for number, row in enumerate(rows):
        generator = _chances(stage, number)
        ids = [START, *[mask] * inner, END]
        for _ in range(sweeps):
            order = (torch.randperm(inner, generator=generator) + 1).tolist()
            for begin in range(0, inner, at_once):
                positions = order[begin : begin + at_once]
                chances = torch.rand(len(positions), generator=generator, dtype=torch.float64).tolist()
                for position in positions:
                    ids[position] = mask
                with torch.no_grad():
                    logits = stage.model(torch.tensor([ids])).logits[0].double().numpy()
                for position, chance in zip(positions, chances, strict=True):
                    likely = np.exp(logits[position] - logits[position].max())
                    likely[stage.tokenizer.all_special_ids] = 0
                    ids[position] = _drawn(likely, chance)
        assert row["input_ids"].tolist() == ids
        assert not row["segments"].any()


@pytest.mark.parametrize("objective", ARCHITECTURES)
def test_from_the_first_domain_on_and_nothing_is_kept(objective: str) -> None:
    method, before = build({"name": "replay_generated", "share": 0.25}), {}
    for index in (1, 2):
        stage = _stage(objective, index, steps=8)
        before[index] = stages.weights(stage.model)
        mixture = stages.begin([method], stage)
        assert mixture.asked == pytest.approx({f"d{index}": 0.75, "generated": 0.25})
        for _ in range(40):
            next(mixture)
        assert mixture.realised == mixture.asked
        assert "the model wrote 2 rows" in stage.notes[0]
        stages.end([method], stage)
        assert not method.memory()
        assert all(torch.equal(value, before[index][name]) for name, value in stages.weights(stage.model).items())
    assert not method.needs.old_data


def test_lots_that_are_whole_are_read_and_others_made_again(tmp_path: Path) -> None:
    whole, _ = generated_rows(_stage(), 8, 1)
    stage = replace(_stage(), folder=tmp_path)
    first, _ = generated_rows(stage, 8, 1)
    lots = sorted((tmp_path / FOLDER).iterdir())
    assert len(lots) == 2
    made = lots[0].stat().st_ino
    texts = lots[1] / "texts.safetensors"
    kept = texts.read_bytes()
    texts.write_bytes(kept[:-4] + b"\x01\x02\x03\x04")
    second, _ = generated_rows(stage, 8, 1)
    assert lots[0].stat().st_ino == made
    assert texts.read_bytes() == kept
    for one, other, third in zip(whole, first, second, strict=True):
        assert one["input_ids"].tolist() == other["input_ids"].tolist() == third["input_ids"].tolist()


def test_processes_share_the_lots_and_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in the place of processes; `test_distributed` has a run of two."""
    alone, _ = generated_rows(_stage(), 8, 1)
    stage = replace(_stage(), folder=tmp_path)
    here, meeting, found, made = threading.local(), threading.Barrier(2), {}, []
    written = generated._written
    monkeypatch.setattr(generated, "processes", lambda: 2)
    monkeypatch.setattr(generated, "rank", lambda: here.rank)
    monkeypatch.setattr(generated, "wait_for_all", meeting.wait)
    monkeypatch.setattr(generated, "_written", lambda *all_: made.append((here.rank, all_[1])) or written(*all_))

    def work(rank: int) -> None:
        here.rank = rank
        found[rank] = generated_rows(stage, 8, 1)[0]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for step in ("start", "join"):
        for thread in threads:
            getattr(thread, step)()
    assert sorted(made, key=str) == [(0, range(4)), (1, range(4, 8))]
    for rows in found.values():
        assert [row["input_ids"].tolist() for row in rows] == [row["input_ids"].tolist() for row in alone]


def test_a_text_begins_with_the_end_token_whatever_its_number() -> None:
    stage = _stage()
    encoder = SimpleNamespace(prefix=[], end=0, pad=1)
    texts = _sampled(stage, [torch.Generator().manual_seed(seed) for seed in range(3)], encoder, 8)
    assert [text[0] for text in texts] == [0, 0, 0]
    encoder.end = None
    assert _sampled(stage, [torch.Generator().manual_seed(1)], encoder, 8)[0][0] == 1, "none: the padding"


def test_a_model_that_ends_at_once_is_no_endless_loop() -> None:
    stage = _stage()
    _lean_to_the_end(stage, 1e5)
    rows, texts = generated_rows(stage, wanted=3, sweeps=1)
    assert len(rows) == 3, "twelve texts of two tokens in a row"
    assert texts == 36
    long = stages.source(count=1)
    long.block_tokens = 100
    with pytest.raises(MethodError, match=r"does not fill one row: 32 texts have 64 tokens. Lower `data.block_size`"):
        generated_rows(replace(stage, source=long), wanted=1, sweeps=1)


def test_what_cannot_be_written_is_refused() -> None:
    def refusal(objective: str, architecture: str, *others: Method, **changes: object) -> str:
        methods = [Replay(source="generated"), *others]
        setting = replace(stages.setting(tiny.model(architecture), methods, objective), **changes)
        with pytest.raises(MethodError) as found:
            check_methods(methods, setting)
        return str(found.value)

    assert "'text-to-text' learns prompts with answers" in refusal("text-to-text", "t5")
    assert "as a run packs them. Use it with `everlearn run`." in refusal("causal", "gpt2", block_size=0)
    assert "'dap_prompt' a text is read with more" in refusal("masked", "roberta", build("dap_prompt"))
    check_methods([Replay(source="generated", share=0)], stages.setting(tiny.model("t5"), [], "text-to-text"))
    with pytest.raises(MethodError, match=r"'source': generated does not go with `sample: 0\.1`"):
        Replay(source="generated", sample=0.1)


def test_writing_is_counted() -> None:
    causal, masked = (Replay(source="generated", capacity=30).cost(tiny.model(name)) for name in ("gpt2", "roberta"))
    assert (causal.passes_elsewhere, causal.disk_bytes) == (10, 0)
    assert masked.passes_elsewhere == 10 * 4 * 7
