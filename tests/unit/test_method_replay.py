"""Replay: the exact share of the tokens, streamed or packed; a fair reservoir; samples that the model writes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.data.blocks import Block, BlockSource
from everlearn.data.corpus import Corpus
from everlearn.data.holdout_view import Without
from everlearn.data.loader import BlockLoader
from everlearn.data.mixing import Anneal, Mixture
from everlearn.data.packing import blocks_of
from everlearn.data.streaming import StreamedBlocks
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Memory, Method, Stage
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.rehearsal import generated
from everlearn.methods.rehearsal.generated import FOLDER, _sampled, generated_rows
from everlearn.methods.rehearsal.replay import Replay
from everlearn.model.objectives import make_objective
from everlearn.seeding import seed_for


def _learnt(method: Replay, domains: int, **options: object) -> Replay:
    for index in range(1, domains + 1):
        stages.end([method], stages.stage(tiny.model(), index, **options))
    return method


def test_first_domain_has_nothing_to_replay() -> None:
    stage = stages.stage(tiny.model(), 1)
    assert stages.begin([Replay()], stage) is stage.source


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_share_of_earlier_tokens_is_exact_to_a_block(share: float) -> None:
    method = _learnt(Replay(share=share), 2)
    mixture = stages.begin([method], stages.stage(tiny.model(), 3))
    assert isinstance(mixture, Mixture)
    assert mixture.asked == pytest.approx({"d3": 1 - share, "earlier domains": share})
    for count in range(1, 200):
        next(mixture)
        assert abs(mixture.tokens["earlier domains"] - share * count * stages.S) < stages.S + 1e-6
    assert mixture.realised["earlier domains"] == pytest.approx(share, abs=0.01)


def test_a_share_may_change_along_a_domain() -> None:
    method = _learnt(Replay(share={"start": 0.5, "end": 0.1}), 1)
    stage = stages.stage(tiny.model(), 2)
    rows = stage.steps * stage.rows_per_step
    mixture = stages.begin([method], stage)
    due = 0.0
    for row in range(rows):
        next(mixture)
        due += (0.5 - 0.4 * row / (rows - 1)) * stages.S
        assert abs(mixture.tokens["earlier domains"] - due) <= stages.S + 1e-6
    assert mixture.asked["earlier domains"] == pytest.approx(0.3)
    constant = stages.begin([_learnt(Replay(share={"start": 0.1, "end": 0.1}), 1)], stages.stage(tiny.model(), 2))
    assert constant.fingerprint == stages.begin([_learnt(Replay(), 1)], stages.stage(tiny.model(), 2)).fingerprint


@pytest.mark.parametrize("options", [{"share": 0.5}, {"share": {"start": 0.8, "end": 0.2}}, {"sample": 0.25}])
@pytest.mark.parametrize("held_out", [False, True])
def test_weights_of_sources_reach_their_end_beside_replay(options: dict[str, object], held_out: bool) -> None:
    """The rows of the domain alone count, of which there are fewer than its steps have."""
    method = _learnt(Replay(**options), 1)
    stage = stages.stage(tiny.model(), 2, count=40, steps=10)
    parts = [("a", stages.source(count=40, seed=0), 1), ("b", stages.source(count=40, seed=1), 0)]
    rows = stage.steps * stage.rows_per_step
    stage.source = Mixture(parts, "d2", size=40, anneal=Anneal({"a": 0.0, "b": 1.0})).along(rows)
    if held_out:
        stage.source = Without(stage.source, [parts[0][1].take([0])[0]])
    mixture = stages.begin([method], stage)
    inner = mixture.sources["d2"]
    inner = inner._source if held_out else inner
    for _ in range(rows):
        next(mixture)
    assert inner.asked == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.1)
    assert inner._shares()["b"] > 0.85, "the last rows are those of the last shares"


@pytest.mark.parametrize(
    ("share", "says"),
    [
        ({"start": 0.3}, r"option 'share\.end': is missing"),
        ({"start": 0.3, "end": 1.5}, r"option 'share\.end': must be below 1"),
        ({"start": 0.3, "end": 0.1, "middle": 0.2}, r"has no option 'share\.middle'"),
        (1.5, r"option 'share': must be below 1\.0, or a mapping of keys \(got 1\.5\)"),
        (True, "must be a number, not true or false"),
    ],
)
def test_a_wrong_share_is_named(share: object, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        Replay(share=share)


def test_a_share_that_changes_is_refused_where_rows_are_shuffled_later() -> None:
    method = Replay(share={"start": 0.5, "end": 0.1})
    setting = replace(stages.setting(tiny.model(), [method]), block_size=0)  # as in a trainer of one's own
    with pytest.raises(MethodError, match="Set one share, or use `everlearn run`"):
        method.check(setting)
    Replay(share=0.3).check(setting)


def test_general_text_and_both() -> None:
    general = stages.begin([Replay(source="general")], stages.stage(tiny.model(), 1, general=True))
    assert general.asked == pytest.approx({"d1": 0.9, "general": 0.1})
    alone = stages.begin([Replay(source="both")], stages.stage(tiny.model(), 1, general=True))
    assert alone.asked == pytest.approx({"d1": 0.9, "general": 0.1}), "in the first domain the general text is alone"
    method = _learnt(Replay(source="both"), 1)
    both = stages.begin([method], stages.stage(tiny.model(), 2, general=True))
    assert both.asked == pytest.approx({"d2": 0.9, "earlier domains": 0.05, "general": 0.05})
    assert not _learnt(Replay(source="general"), 2).memory(), (
        "nothing of the domains is kept when only general text is mixed in"
    )


def test_replayed_blocks_are_blocks_of_earlier_domains() -> None:
    method = _learnt(Replay(share=0.5), 2)
    mixture = stages.begin([method], stages.stage(tiny.model(), 3))
    earlier = {tuple(row) for seed in (1, 2) for row in stages.source(count=12, seed=seed).arrays["input_ids"].tolist()}
    own = {tuple(row) for row in stages.source(count=12, seed=3).arrays["input_ids"].tolist()}
    rows = [tuple(next(mixture)["input_ids"].tolist()) for _ in range(48)]
    assert sum(row in earlier for row in rows) == 24
    assert sum(row in own for row in rows) == 24


def test_reservoir_is_full_and_fair() -> None:
    kept: Counter[str] = Counter()
    model = tiny.model()
    for seed in range(60):
        method = Replay(capacity=10)
        for index in (1, 2, 3):
            stages.end([method], stages.stage(model, index, count=10 * index, seed=seed))
        facts = method.memory().facts
        assert len(facts["domains"]) == 10
        assert facts["seen"] == 60
        kept.update(facts["domains"])
    # 600 draws; a domain's expectation is its share of all blocks (1, 2, 3 of 6), five standard deviations are 61.
    for name, expected in (("d1", 100), ("d2", 200), ("d3", 300)):
        assert abs(kept[name] - expected) < 61


@pytest.mark.parametrize(("objective", "architecture"), [("masked", "roberta"), ("text-to-text", "t5")])
def test_memory_is_the_whole_state(objective: str, architecture: str) -> None:
    method = _learnt(Replay(capacity=7), 0)
    for index in (1, 2):
        stages.end([method], stages.stage(tiny.model(architecture), index, objective))
    copy = Replay(capacity=7)
    copy.load_memory(method.memory())
    both = [(m, stages.stage(tiny.model(architecture), 3, objective)) for m in (method, copy)]
    one, other = (stages.begin([m], third) for m, third in both)
    for _ in range(20):
        assert next(one)["input_ids"].tolist() == next(other)["input_ids"].tolist()
    for m, third in both:
        stages.end([m], third)
    assert method.memory().facts == copy.memory().facts


def test_general_corpus_that_is_not_there_is_refused() -> None:
    model = tiny.model()
    with pytest.raises(MethodError, match="`general`"):
        check_methods([Replay(source="both")], stages.setting(model, [Replay()]))
    check_methods([Replay(source="both")], stages.setting(model, [Replay()], general=True))
    check_methods([Replay(source="both", share=0)], stages.setting(model, [Replay()]))


def _rows(source: object, count: int) -> list[tuple[int, ...]]:
    return [tuple(next(source)["input_ids"].tolist()) for _ in range(count)]


@pytest.mark.parametrize(("objective", "architecture"), [("text-to-text", "t5"), ("text-to-text", "llama")])
def test_a_sample_of_every_earlier_domain_joins_the_rows(objective: str, architecture: str) -> None:
    """int(q · n) rows of each, none twice; a pass has the domain's rows and these, each once, in a mixed order."""
    method, model = Replay(sample=0.3), tiny.model(architecture)
    domains = {index: stages.stage(model, index, objective, count=count) for index, count in ((1, 12), (2, 5), (3, 20))}
    for index in (1, 2):
        stages.end([method], domains[index])
    known = {index: Counter(_rows(stage.source.fresh(0), stage.source.size)) for index, stage in domains.items()}
    kept = Counter(tuple(block["input_ids"].tolist()) for block in method._reservoir.blocks)
    assert Counter(method.memory().facts["domains"]) == {"d1": int(0.3 * 12), "d2": int(0.3 * 5)}
    assert kept <= known[1] + known[2], "drawn without replacement"

    joined = stages.begin([method], domains[3])
    assert joined.size == 20 + 3 + 1
    passes = [_rows(joined, joined.size) for _ in range(2)]
    for order in passes:
        assert Counter(order) == known[3] + kept
    assert passes[0] != passes[1]
    assert joined.realised == joined.asked == pytest.approx({"d3": 20 / 24, "earlier domains": 4 / 24})
    labelled = next(joined)["labels"]
    assert (labelled != -100).any(), "answers come with their prompts"


def test_a_sample_is_uniform_and_another_with_each_seed() -> None:
    kept: Counter[tuple[int, ...]] = Counter()
    model = tiny.model()
    for seed in range(100):
        method = Replay(sample=0.25)
        stages.end([method], stages.stage(model, 1, count=8, seed=seed))
        rows = [tuple(block["input_ids"].tolist()) for block in method._reservoir.blocks]
        assert len(set(rows)) == 2
        kept.update(rows)
    # 200 draws of 8 rows; five standard deviations of a row's count are 22.
    assert len(kept) == 8
    assert all(abs(count - 25) < 22 for count in kept.values())


def test_a_sample_goes_on_from_memory_and_from_the_middle_of_a_pass() -> None:
    method = _learnt(Replay(sample=0.5), 2)
    copy = Replay(sample=0.5)
    copy.load_memory(method.memory())
    one, other = (stages.begin([m], stages.stage(tiny.model(), 3)) for m in (method, copy))
    _rows(one, 17)
    other.load_state_dict(one.state_dict())
    assert _rows(one, 30) == _rows(other, 30)
    assert _rows(one.fresh(1), 20) == _rows(other.fresh(1), 20) != _rows(one.fresh(2), 20)


def test_samples_that_do_not_fit_or_contradict_are_refused() -> None:
    method = _learnt(Replay(sample=0.5, capacity=8), 1)
    with pytest.raises(MethodError, match=r"'capacity': 8 rows are fewer than the 6 .* and 6 of domain 'd2'"):
        stages.begin([method], stages.stage(tiny.model(), 2))
    for option in ({"share": 0.2}, {"source": "general"}):
        with pytest.raises(MethodError, match=r"has no effect with `sample: 0.5`, which adds"):
            Replay(sample=0.5, **option)
    few = _learnt(build("replay_sample"), 1)
    stage = stages.stage(tiny.model(), 2)
    assert stages.begin([few], stage) is stage.source, "2 % of twelve rows are none"
    assert not few.memory().tensors


def test_without_a_share_nothing_is_kept() -> None:
    method = _learnt(Replay(share=0), 2)
    stage = stages.stage(tiny.model(), 3)
    assert not method.memory()
    assert stages.begin([method], stage) is stage.source
    assert method.cost(stage.model).memory_bytes == 0


@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_continual_t0_keeps_one_percent_of_the_examples_of_every_earlier_task(architecture: str) -> None:
    """Rounded down for each task by itself; answers come with their prompts, and a pass has each once."""
    method, model = build("continual_t0"), tiny.model(architecture)
    sizes = {1: 250, 2: 99, 3: 100}
    known = set()
    for index, count in sizes.items():
        stage = stages.stage(model, index, "text-to-text", count=count)
        stages.end([method], stage)
        known |= {(*block["input_ids"].tolist(), None, *block["labels"].tolist()) for block in stage.source.once(0)}
    assert Counter(method.memory().facts["domains"]) == {"d1": 2, "d3": 1}
    last = stages.stage(model, 4, "text-to-text", count=20)
    joined = stages.begin([method], last)
    own = {tuple(block["input_ids"].tolist()) for block in last.source.once(0)}
    blocks = [next(joined) for _ in range(joined.size)]
    old = [block for block in blocks if tuple(block["input_ids"].tolist()) not in own]
    assert (len(blocks), len(old)) == (23, 3)
    assert all((*block["input_ids"].tolist(), None, *block["labels"].tolist()) in known for block in old)
    assert all((block["labels"] != -100).any() for block in old)


def test_a_sample_of_less_than_a_row_is_said() -> None:
    stage = stages.stage(tiny.model(), 1)
    method = build("continual_t0")
    stages.begin([method], stage)
    stages.end([method], stage)
    assert stage.notes == [
        "Method 'continual_t0' stores nothing of 'd1': `sample: 0.01` of its 12 rows is less than one."
    ]


def test_sweeps_are_of_a_model_that_writes() -> None:
    with pytest.raises(MethodError, match=r"'sweeps': 8 has no effect with `source: earlier`"):
        Replay(sweeps=8)


OLD, S = 3, 16
"""A token that no text has; tokens in a row."""
BATCHES, ROWS = 40, 16


def _new(folder: Path, streaming: bool) -> BlockSource:
    texts = tiny.texts(40, words=30)
    if not streaming:
        return PackedBlocks.from_blocks(blocks_of(texts, tiny.tokenizer(), "decoder", S), 0, "d2")
    path = folder / "new.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    corpus = Corpus(path=str(path), streaming=True, shuffle_buffer=5)
    return StreamedBlocks(corpus, tiny.tokenizer(), "decoder", S, 0, name="d2")


def _mixed(folder: Path, streaming: bool, share: float) -> BlockSource:
    """The second domain with replay of a first one, which was nothing but one token."""
    ids = np.full((20, S), OLD, np.int32)
    old: list[Block] = [{"input_ids": row, "segments": np.zeros_like(row)} for row in ids]
    method = Replay(share=share)
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    stage.source = PackedBlocks.from_blocks(old, 0, "d1")
    method.end_domain(stage)
    copy = Replay(share=share)
    copy.load_memory(Memory(method.memory().tensors, json.loads(json.dumps(method.memory().facts))))
    second = stages.stage(tiny.model("gpt2"), 2, "causal")
    return copy.training_data(_new(folder, streaming), second)


@pytest.mark.parametrize("streaming", [False, True], ids=["packed", "streamed"])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.25])
def test_what_two_processes_train_on(tmp_path: Path, streaming: bool, share: float) -> None:
    """Each token of each batch is counted, on both processes, which stop half-way and go on from a saved state."""
    objective = make_objective("causal", tiny.model("gpt2"), tiny.tokenizer())
    old = total = 0
    for rank in (0, 1):
        saved = None
        for upto in (BATCHES // 2 + 1, BATCHES):
            source = _mixed(tmp_path, streaming, share)
            loader = BlockLoader(source, objective, ROWS, BATCHES, rank, 2)
            if saved is not None:
                loader.load_state_dict(json.loads(saved))
            for batch in loader:
                old += int((batch["input_ids"] == OLD).sum())
                total += batch["input_ids"].numel()
                if loader.index == upto:
                    break
            saved = json.dumps(loader.state_dict())
        assert isinstance(source, Mixture)
        assert source.realised["earlier domains"] == pytest.approx(share, abs=1e-3)
    assert total == 2 * BATCHES * ROWS * S
    assert old / total == pytest.approx(share, abs=1e-3)
    assert old == source.tokens["earlier domains"], "what is reported is what was trained on"


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
    rows, count = generated_rows(stage, row_count=6, sweeps=1)
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
    rows, _ = generated_rows(stage, row_count=2, sweeps=sweeps)
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
        assert "the model generated 2 rows" in stage.notes[0]
        stages.end([method], stage)
        assert not method.memory()
        assert all(torch.equal(value, before[index][name]) for name, value in stages.weights(stage.model).items())
    assert not method.needs.old_data


def test_lots_that_are_whole_are_read_and_others_made_again(tmp_path: Path) -> None:
    whole, _ = generated_rows(_stage(), 8, 1)
    stage = replace(_stage(), folder=tmp_path)
    first, _ = generated_rows(stage, 8, 1)
    batches = sorted((tmp_path / FOLDER).iterdir())
    assert len(batches) == 2
    made = batches[0].stat().st_ino
    texts = batches[1] / "texts.safetensors"
    kept = texts.read_bytes()
    texts.write_bytes(kept[:-4] + b"\x01\x02\x03\x04")
    second, _ = generated_rows(stage, 8, 1)
    assert batches[0].stat().st_ino == made
    assert texts.read_bytes() == kept
    for one, other, third in zip(whole, first, second, strict=True):
        assert one["input_ids"].tolist() == other["input_ids"].tolist() == third["input_ids"].tolist()


def test_processes_share_the_lots_and_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in the place of processes; `test_distributed` has a run of two."""
    alone, _ = generated_rows(_stage(), 8, 1)
    stage = replace(_stage(), folder=tmp_path)
    here, meeting, found, made = threading.local(), threading.Barrier(2), {}, []
    written = generated._generate
    monkeypatch.setattr(generated, "processes", lambda: 2)
    monkeypatch.setattr(generated, "rank", lambda: here.rank)
    monkeypatch.setattr(generated, "wait_for_all", meeting.wait)
    monkeypatch.setattr(generated, "_generate", lambda *all_: made.append((here.rank, all_[1])) or written(*all_))

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
    rows, texts = generated_rows(stage, row_count=3, sweeps=1)
    assert len(rows) == 3, "twelve texts of two tokens in a row"
    assert texts == 36
    long = stages.source(count=1)
    long.block_tokens = 100
    with pytest.raises(MethodError, match=r"does not fill one row: 32 texts have 64 tokens. Lower `data.block_size`"):
        generated_rows(replace(stage, source=long), row_count=1, sweeps=1)


def test_what_cannot_be_written_is_refused() -> None:
    def refusal(objective: str, architecture: str, *others: Method, **changes: object) -> str:
        methods = [Replay(source="generated"), *others]
        setting = replace(stages.setting(tiny.model(architecture), methods, objective), **changes)
        with pytest.raises(MethodError) as found:
            check_methods(methods, setting)
        return str(found.value)

    assert "'text-to-text' learns prompts with answers" in refusal("text-to-text", "t5")
    assert "as a run packs them. Use it with `everlearn run`." in refusal("causal", "gpt2", block_size=0)
    assert "'dap_prompt' needs additional modules" in refusal("masked", "roberta", build("dap_prompt"))
    check_methods([Replay(source="generated", share=0)], stages.setting(tiny.model("t5"), [], "text-to-text"))
    with pytest.raises(MethodError, match=r"'source': 'generated' has no effect with `sample: 0\.1`"):
        Replay(source="generated", sample=0.1)


def test_writing_is_counted() -> None:
    causal, masked = (Replay(source="generated", capacity=30).cost(tiny.model(name)) for name in ("gpt2", "roberta"))
    assert (causal.passes_elsewhere, causal.disk_bytes) == (10, 0)
    assert masked.passes_elsewhere == 10 * 4 * 7
