"""New tokens for a domain: what is learnt, what stays as it was, and how rows begin."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import stages
import tiny
from everlearn.commands.extend import extend
from everlearn.data.corpus import Corpus
from everlearn.errors import MethodError, ModelError
from everlearn.methods import build
from everlearn.model.options import Model
from everlearn.model.vocabulary import LEAST, extend_vocabulary, learn_tokens, with_tokens

WORDS = ("zygote", "zygotes", "mitochondria", "ribosome", "ribosomes")
TEXTS = [f"the {WORDS[i % 5]} and a {WORDS[(2 * i) % 5]} keeps the model 2024 2024!" for i in range(30)]


def wordpiece() -> Any:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=[*special, *letters], show_progress=False)
    core.train_from_iterator([*tiny.texts(100), "abcdefghijklmnopqrstuvwxyz z y x w"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]")


def unigram() -> Any:
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator([*tiny.texts(100), "zygote mitochondria ribosome zxwvutsrqponmlkjihgfedcba"] * 2, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")


KINDS: dict[str, Any] = {"BPE": tiny.tokenizer, "WordPiece": wordpiece, "Unigram": unigram}


def tokens_of(tokenizer: Any, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_the_domain_take_fewer_tokens(kind: str, tmp_path: Path) -> None:
    before = KINDS[kind]()
    added = learn_tokens(before, TEXTS, 12)
    after = with_tokens(before, added)
    assert 0 < len(added) <= 12
    assert len(after) == len(before) + len(added)
    first = max(before.get_vocab().values()) + 1
    assert [after.convert_tokens_to_ids(token.text) for token in added] == [*range(first, first + len(added))]
    assert len(tokens_of(after, TEXTS[0])) < len(tokens_of(before, TEXTS[0]))
    for text in TEXTS[:5]:  # nothing is lost
        one, other = (each.decode(each(text, add_special_tokens=False)["input_ids"]) for each in (before, after))
        assert one == other
    for text in tiny.texts(20, seed=4) if kind != "BPE" else ():  # text without the domain's words is as it was
        assert tokens_of(after, text) == tokens_of(before, text)
    assert not any("0" in token.text or "!" in token.text for token in added)
    after.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert [tokens_of(again, text) for text in TEXTS] == [tokens_of(after, text) for text in TEXTS]


def test_bpe_learns_the_most_frequent_pair_inside_words_again_and_again() -> None:
    """Against counting all pairs anew after every merge."""
    before = tiny.tokenizer()
    words: Counter[tuple[str, ...]] = Counter()
    for text in TEXTS:
        for word, _ in before.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text):
            pieces = tuple(token.value for token in before.backend_tokenizer.model.tokenize(word))
            words[pieces] += word.lstrip("Ġ").isalpha()
    known, found = set(before.get_vocab()), []
    while len(found) < 20:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        fitting = [
            (-count, pair) for pair, count in pairs.items() if count >= LEAST and "".join(pair) not in {*known, *found}
        ]
        if not fitting:
            break
        _, (one, other) = min(fitting)
        found.append(one + other)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            left, parts = list(word), []
            while left:
                parts.append("".join(left[:2]) if left[:2] == [one, other] else left[0])
                del left[: 2 if left[:2] == [one, other] else 1]
            merged[tuple(parts)] += count
        words = merged
    assert [token.text for token in learn_tokens(before, TEXTS, 20)] == found


def test_a_text_has_the_tokens_that_it_had_some_of_them_joined() -> None:
    before = tiny.tokenizer()
    added = learn_tokens(before, TEXTS, 30)
    after, pieces = with_tokens(before, added), {token.text: token.pieces for token in added}
    for text in [*TEXTS, *tiny.texts(30, seed=9), "zygotic ribosomal zyg RIBOSOME"]:
        parts = [piece for token in tokens_of(after, text) for piece in pieces.get(token, (token,))]
        assert parts == tokens_of(before, text)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "roberta", "t5"])
@pytest.mark.parametrize("initialise", ["pieces", "mean"])
def test_rows_begin_with_a_mean_and_old_ones_stay(architecture: str, initialise: Any) -> None:
    model, before = tiny.model(architecture), tiny.tokenizer()
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    after, added = extend_vocabulary(model, before, TEXTS, 10, initialise=initialise)
    old, size = len(before), len(before) + len(added)
    assert model.get_input_embeddings().num_embeddings == size == model.config.vocab_size
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == bool(model.config.tie_word_embeddings)
    grown = {name: value for name, value in model.state_dict().items() if value.shape != plain[name].shape}
    assert grown
    for name, value in grown.items():
        assert torch.equal(value[:old], plain[name])
        for token in added:
            ids = before.convert_tokens_to_ids(list(token.pieces))
            rows = plain[name] if initialise == "mean" else plain[name][ids]
            assert torch.allclose(value[after.convert_tokens_to_ids(token.text)], rows.mean(0), atol=1e-7), name
    for name, value in model.state_dict().items():
        assert name in grown or torch.equal(value, plain[name])


def test_spare_rows_are_used_and_what_is_saved_loads_anywhere(tmp_path: Path) -> None:
    model, before = tiny.model("llama", vocab_size=400), tiny.tokenizer()
    after, added = extend_vocabulary(model, before, TEXTS, 6)
    assert model.get_input_embeddings().num_embeddings == 400
    model.save_pretrained(tmp_path)
    after.save_pretrained(tmp_path)
    read, words = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = words(TEXTS[0], return_tensors="pt")["input_ids"]
    assert (ids >= len(before)).any()
    assert torch.equal(read(ids).logits, model.eval()(ids).logits)
    assert words.get_vocab() == after.get_vocab()
    assert before.get_vocab() == tiny.tokenizer().get_vocab()  # the given one stays as it is


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_extended_model_keeps_the_number_format_of_its_base(dtype: torch.dtype, tmp_path: Path) -> None:
    base = tiny.model("llama").to(dtype)
    base.save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    text = Corpus(path=str(tmp_path / "text.jsonl"))
    extend(Model(path=str(tmp_path / "base")), text, tmp_path / "extended", tokens=8)
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "extended")
    assert {weight.dtype for weight in made.state_dict().values()} == {dtype}
    old, new = (model.get_input_embeddings().weight for model in (base, made))
    assert torch.equal(old, new[: len(old)].to(old.device)), "old rows do not change"


def test_nothing_to_add_and_other_tokenizers_are_refused() -> None:
    with pytest.raises(ModelError, match="there is nothing to add"):
        learn_tokens(tiny.tokenizer(), ["mitochondria"], 5)
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(ModelError, match="this tokenizer is WordLevel"):
        learn_tokens(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"), TEXTS, 5)


def published(name: str) -> Any:
    """A tokenizer of a class of its own, which builds itself anew when it is read."""
    vocabulary = [json.loads(KINDS[kind]().backend_tokenizer.to_str())["model"] for kind in KINDS]
    bpe, pieces, scored = vocabulary
    merges = [tuple(merge) for merge in bpe["merges"]]
    made = {
        "gpt2": lambda: transformers.GPT2Tokenizer(vocab=bpe["vocab"], merges=merges),
        "llama": lambda: transformers.LlamaTokenizer(
            vocab={word.replace("Ġ", "▁"): number for word, number in bpe["vocab"].items()},
            merges=[(one.replace("Ġ", "▁"), other.replace("Ġ", "▁")) for one, other in merges],
        ),
        "bert": lambda: transformers.BertTokenizer(vocab=pieces["vocab"]),
        "t5": lambda: transformers.T5Tokenizer(vocab=[tuple(piece) for piece in scored["vocab"]], extra_ids=4),
    }
    return made[name]()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_classes_of_their_own_read_what_was_saved(name: str, tmp_path: Path) -> None:
    before = published(name)
    after = with_tokens(before, learn_tokens(before, TEXTS, 12))
    after.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is type(before)
    assert len(again) == len(after) > len(before)
    assert [tokens_of(again, text) for text in TEXTS] == [tokens_of(after, text) for text in TEXTS]
    assert sum(map(len, (tokens_of(after, text) for text in TEXTS))) < sum(len(tokens_of(before, t)) for t in TEXTS)


def test_what_a_method_remembers_of_a_smaller_vocabulary_is_refused() -> None:
    """In other people's trainers a model may grow between two domains; its anchor and importance have not."""
    model, method = tiny.model("gpt2"), build("ewc")
    stages.learn([method], stages.stage(model, 1, "causal", count=4, steps=1))
    extend_vocabulary(model, tiny.tokenizer(), TEXTS, 5)
    with pytest.raises(MethodError, match=r"remembers '.*wte.*' with shape .* Its memory belongs to another model"):
        stages.learn([method], stages.stage(model, 2, "causal", count=4, steps=1))
