"""Small encoders from nothing: the tokenizer, the start, what is shipped, and the English base made of them."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, RobertaConfig

import tiny
from everlearn.config import recipe as recipes
from everlearn.errors import EverlearnError, ModelError
from everlearn.files import digest, read_json
from everlearn.model.loading import check_complete
from everlearn_bench.suites.docs.start import start_model as docs_start
from everlearn_bench.suites.pretraining import ship, start_model, train_tokenizer
from everlearn_bench.suites.pretraining.start import OFFSETS

ENGLISH = Path(__file__).parents[2] / "benchmarks" / "bases" / "english"


def small_config(**changes) -> RobertaConfig:
    shape = {
        "vocab_size": 300,
        "hidden_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 66,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    }
    return RobertaConfig(**shape | changes)


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make_english", ENGLISH / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_same_texts_same_tokenizer(tmp_path):
    texts = tiny.texts(100)
    train_tokenizer(iter(texts), tmp_path / "one", 400, 64)
    train_tokenizer(texts, tmp_path / "two", 400, 64)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert tokenizer.model_max_length == 64
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]) == [0, 1, 2, 3, 4]
    assert tokenizer.decode(tokenizer("Zażółć\n  x", add_special_tokens=False).input_ids) == "Zażółć\n  x"


def test_heads_of_the_first_layer_attend_to_neighbours():
    model = start_model(small_config(), "test").eval()
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 300, (4, 64), generator=generator)
    with torch.no_grad():
        attention = model(tokens, output_attentions=True).attentions[0]  # [row, head, query, key]
    inner = torch.arange(2, 62)
    for head, offset in enumerate(OFFSETS):
        most = attention[:, head, inner].argmax(-1)
        assert (most == inner + offset).float().mean() > 0.75, offset
        assert attention[:, head, inner, inner + offset].mean() > 10 / 64, offset  # 1/64 without a preference


def test_a_start_is_the_same_every_time_and_without_dropout():
    one, two, other = (start_model(small_config(), *purpose).state_dict() for purpose in (("a",), ("a",), ("b",)))
    assert all(torch.equal(one[name], two[name]) for name in one)
    word = "roberta.embeddings.word_embeddings.weight"
    assert not torch.equal(one[word], other[word])
    assert one[word].std() == pytest.approx(0.05, rel=0.05)
    config = start_model(small_config(), "a").config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.0


def test_docs_start_is_what_it_was():
    model = docs_start()
    query = model.roberta.encoder.layer[0].attention.self.query.weight
    sums = [parameter.detach().double().abs().sum().item() for parameter in (model.lm_head.dense.weight, query)]
    assert sums == pytest.approx([2617.106551, 456.357678], rel=1e-6)  # those of the start that the docs base had


def test_ship_stores_bf16_with_dropout_and_checksum(tmp_path):
    model = start_model(small_config(), "test")
    model.save_pretrained(tmp_path / "stage")
    weights = ship(tmp_path / "stage", tmp_path / "out")
    assert read_json(tmp_path / "out" / "checksum.json") == {"model.safetensors": digest(weights)}
    assert AutoConfig.from_pretrained(tmp_path / "out").hidden_dropout_prob == 0.1
    shipped = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(shipped[name], value.bfloat16().float()), name


def test_ship_refuses_what_is_too_large(tmp_path):
    start_model(small_config(), "test").save_pretrained(tmp_path / "stage")
    out = tmp_path / "out"
    ship(tmp_path / "stage", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "tokenizer.json").write_bytes(b" " * 12 * 10**6)
    with pytest.raises(EverlearnError, match="at most 12000000 are shipped"):
        ship(tmp_path / "stage", out)
    (out / "tokenizer.json").unlink()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "stage"]


def test_english_texts_are_distinct_and_mixed_in_one_order(make, tmp_path):
    for source in ("books", "wikipedia"):
        (tmp_path / source).mkdir()
        rows = [{"text": f"{source} {i // 2}"} for i in range(40)]
        with gzip.open(tmp_path / source / "train.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    texts = make.texts(tmp_path, "train")
    assert sorted(texts) == sorted(f"{source} {i}" for source in ("books", "wikipedia") for i in range(20))
    first = [text.split()[0] for text in texts[:20]]
    assert 4 < first.count("books") < 16
    assert texts == make.texts(tmp_path, "train")


def test_english_configuration_fits_into_what_is_shipped(make):
    config = make.configuration()
    parameters = sum(p.numel() for p in AutoModelForMaskedLM.from_config(config).parameters())
    assert 5e6 < parameters < 15e6
    assert 2 * parameters < 12e6
    recipe = recipes.load(ENGLISH / "recipe.yaml")
    assert Path(str(recipe.model.path)).parts[-3:] == (*make.BUILD.parts, "start")
    assert recipe.objective == "masked"


def test_a_compact_tokenizer_is_the_same_one(make, tmp_path):
    texts = tiny.texts(60)
    (tmp_path / "copy").mkdir()
    train_tokenizer(texts, tmp_path / "whole", 350, 64)
    make.copy_tokenizer(tmp_path / "whole", tmp_path / "copy")
    one, two = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("whole", "copy"))
    assert [one(text).input_ids for text in texts] == [two(text).input_ids for text in texts]
    assert one.mask_token_id == two.mask_token_id
    sizes = [(tmp_path / name / "tokenizer.json").stat().st_size for name in ("whole", "copy")]
    assert sizes[1] < 0.6 * sizes[0]


def test_shipped_english_base_is_whole_small_and_of_this_shape(make):
    try:
        check_complete(ENGLISH)
    except ModelError as error:  # the tree does not hold it
        pytest.skip(str(error))
    assert read_json(ENGLISH / "checksum.json") == {"model.safetensors": digest(ENGLISH / "model.safetensors")}
    assert sum(path.stat().st_size for path in ENGLISH.iterdir() if path.is_file()) <= 12 * 10**6
    config = AutoConfig.from_pretrained(ENGLISH)
    wanted = make.configuration()
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "layer_norm_eps"):
        assert getattr(config, name) == getattr(wanted, name), name
    assert config.hidden_dropout_prob == 0.1
    tokenizer = AutoTokenizer.from_pretrained(ENGLISH)
    assert len(tokenizer) == config.vocab_size
    text = "It is located in the north of the<mask> States."
    batch = tokenizer(text, return_tensors="pt")
    model = AutoModelForMaskedLM.from_pretrained(ENGLISH, dtype=torch.float32).eval()
    with torch.no_grad():
        best = model(**batch).logits[batch.input_ids == tokenizer.mask_token_id].argmax(-1)
    assert tokenizer.decode(best) == " United"
