"""Commands that change weights without training: merge and repair."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import everlearn as package
import tiny
from cli_project import Project, write_jsonl
from everlearn.evaluation import Cell, Results, set_path
from everlearn.learner import ContinualLearner
from everlearn.tasks.held_out import HeldOutText

# -- ``everlearn merge`` and ``everlearn extend`` as a user types them -------------------------------------------------


def save(folder: Path, architecture: str = "gpt2", seed: int = 0, dtype: torch.dtype = torch.float32, **changes) -> str:
    """A tiny checkpoint with its tokenizer."""
    tiny.model(architecture, seed=seed, **changes).to(dtype).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def tensors(folder: Path | str) -> dict[str, torch.Tensor]:
    return {n: t for file in sorted(Path(folder).glob("model*.safetensors")) for n, t in load_file(file).items()}


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """A base and two checkpoints."""
    return [save(tmp_path / name, seed=seed) for seed, name in enumerate(("start", "one", "two"))]


def test_a_merged_folder_loads_without_everlearn(everlearn: Project, three: list[str]) -> None:
    base, one, two = three
    done = everlearn.call("merge", one, f"other={two}", "--set", "weights=[1, 3]", "-o", "out")
    assert done.code == 0, done.err
    assert "Merged one, other (mean, 28 tensors): out" in done.out
    found, (a, b) = tensors("out"), map(tensors, (one, two))
    assert found.keys() == a.keys(), "a matrix that two modules share is there once"
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, ((a[name].double() + 3 * b[name].double()) / 4).float(), rtol=0, atol=0)
    model = AutoModelForCausalLM.from_pretrained("out")
    assert model.transformer.wte.weight is model.lm_head.weight
    assert torch.equal(model.transformer.wte.weight, found["transformer.wte.weight"])
    assert AutoTokenizer.from_pretrained("out").get_vocab() == tiny.tokenizer().get_vocab()
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert "Merged from one, other, with [Mean](https://arxiv.org/abs/2203.05482) (weights [1.0, 3.0])." in card
    made = json.loads(Path("out/merged.json").read_text(encoding="utf-8"))
    assert made["method"] == {"name": "mean", "weights": [1.0, 3.0]}
    assert made["checkpoints"] == ["one", "other"]
    assert len(made["weights"]["other"]["model.safetensors"]) == 32
    assert str(everlearn.folder) not in "".join(p.read_text("utf-8") for p in Path("out").glob("*.[jm]*[nd]"))
    assert not list(Path().glob(".partial.*"))
    everlearn.fails("merge", one, two, "-o", "out", says=("out exists already",))


@pytest.mark.parametrize("text", ["", " "])
def test_no_text_is_a_sentence(everlearn: Project, three: list[str], text: str) -> None:
    base, one, two = three
    for method in ("fisher", "cocktail"):
        everlearn.fails("merge", one, two, "--method", method, "--text", text, "-o", "out", says=("`--text` is empty",))
    everlearn.fails("extend", one, "out", "--text", text, says=("`--text` is empty",))


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "dare", "model_stock"])
def test_merging_methods_that_begin_at_a_base(everlearn: Project, three: list[str], method: str) -> None:
    base, one, two = three
    everlearn.fails("merge", one, two, "--method", method, "-o", "out", says=(f"`--method {method}`", "`--base`"))
    done = everlearn.call("merge", one, two, "--method", method, "--base", base, "-o", "out", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["base"] == "start"
    found, start = tensors("out"), tensors(base)
    assert any(not torch.equal(found[name], start[name]) for name in start)
    AutoModelForCausalLM.from_pretrained("out")


def test_a_run_stands_for_its_stages_and_knows_its_base(everlearn: Project, finished_run: Path) -> None:
    done = everlearn.call("merge", str(finished_run), "--method", "ties", "--set", "keep=1", "--set", "since=before",
                          "-o", "out", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["checkpoints"] == ["first stage-01-a", "first stage-02-b"]
    AutoModelForMaskedLM.from_pretrained("out")
    last = finished_run / "stage-02-b"
    done = everlearn.call("merge", str(last), "--method", "wise_ft", "--set", "alpha=0.25", "-o", "line")
    assert done.code == 0, done.err
    found, start, end = tensors("line"), tensors(everlearn.models / "roberta"), tensors(last)
    for name, tensor in found.items():
        wanted = 0.75 * start[name].double() + 0.25 * end[name].double()
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-6, atol=1e-9)
    everlearn.fails(
        "merge", str(last), "--base", str(finished_run), "--method", "wise_ft", "-o", "more", says=("is a run",)
    )
    inside = finished_run / "merged"
    everlearn.fails("merge", str(finished_run), "-o", str(inside), says=("inside the run",))


def test_number_formats_and_several_files(everlearn: Project, tmp_path: Path) -> None:
    """16-bit weights are merged in float64 and stored in 16 bits; files are as the last checkpoint's."""
    one = save(tmp_path / "one", seed=1, dtype=torch.bfloat16)
    tiny.model("gpt2", seed=2).to(torch.bfloat16).save_pretrained(tmp_path / "two", max_shard_size="40KB")
    two, other = str(tmp_path / "two"), save(tmp_path / "other", seed=3)
    done = everlearn.call("merge", other, one, two, "-o", "out")
    assert done.code == 0, done.err
    assert "Note: 'two' has no tokenizer" in done.out
    assert len(list(Path("out").glob("model-0*.safetensors"))) == len(list(Path(two).glob("model-0*.safetensors"))) > 1
    found, parts = tensors("out"), [tensors(each) for each in (other, one, two)]
    for name, tensor in found.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, (sum(part[name].double() for part in parts) / 3).to(torch.bfloat16))
    assert AutoModelForCausalLM.from_pretrained("out").dtype == torch.bfloat16


def test_merging_methods_that_read_a_text(everlearn: Project, three: list[str]) -> None:
    _, one, two = three
    for method in ("cocktail", "fisher"):
        everlearn.fails("merge", one, two, "--method", method, "-o", "out", says=("`--text`", "(got 0)"))
    everlearn.fails("merge", one, two, "--text", "a.jsonl", "-o", "out", says=("`--text`", "`mean` does not"))
    done = everlearn.call("merge", one, two, "--method", "cocktail", "--text", "a.jsonl", "--blocks", "4", "-o",
                          "mixed", "--set", "temperature=0.1", "--json")  # fmt: skip
    assert done.code == 0, done.err
    facts = json.loads(done.out)["facts"]
    assert sum(facts["weights"]) == pytest.approx(1)
    assert (facts["weights"][0] > 0.5) == (facts["losses"][0] < facts["losses"][1])
    found, (a, b) = tensors("mixed"), map(tensors, (one, two))
    name, w = "transformer.wte.weight", facts["weights"]
    torch.testing.assert_close(
        found[name].double(), w[0] * a[name].double() + w[1] * b[name].double(), rtol=1e-6, atol=0
    )
    done = everlearn.call("merge", one, two, "--method", "fisher", "--text", "a.jsonl", "--text", "b.jsonl", "--blocks",
                          "4", "-o", "careful", "--set", "floor=1e-12")  # fmt: skip
    assert done.code == 0, done.err
    found = tensors("careful")[name]
    low, high = torch.minimum(a[name], b[name]), torch.maximum(a[name], b[name])
    assert ((found >= low - 1e-6) & (found <= high + 1e-6)).all(), "between the two, everywhere"
    assert not torch.allclose(found, (a[name] + b[name]) / 2, atol=1e-3), "not in the middle"


def test_adapters_are_merged_first(everlearn: Project, finished_run: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = everlearn.models / "llama"
    model = AutoModelForCausalLM.from_pretrained(base)
    wrapped = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, target_modules=["q_proj"])
    )
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(tmp_path / "adapter")
    done = everlearn.call("merge", str(tmp_path / "adapter"), str(base), "-o", "out")
    assert done.code == 0, done.err
    plain, name = wrapped.merge_and_unload().state_dict(), "model.layers.0.self_attn.q_proj.weight"
    wanted = (plain[name].double() + tensors(base)[name].double()) / 2
    torch.testing.assert_close(tensors("out")[name].double(), wanted, rtol=1e-6, atol=1e-8)


def test_what_does_not_fit_together_is_refused(everlearn: Project, three: list[str], tmp_path: Path) -> None:
    _, one, _ = three
    large = save(tmp_path / "large", vocab_size=400)
    everlearn.fails("merge", one, large, "-o", "out", says=("384 and 400 tokens", "'one'", "'large'"))
    deep = save(tmp_path / "deep", n_layer=3)
    everlearn.fails("merge", one, deep, "-o", "out", says=("'deep' has the tensor 'transformer.h.2", "grew"))
    other = str(everlearn.models / "llama")
    everlearn.fails("merge", one, other, "-o", "out", says=("'one' is a gpt2 and 'llama' a llama",))
    words = shutil.copytree(one, tmp_path / "words")
    raw = (words / "tokenizer.json").read_text(encoding="utf-8")
    vocabulary = json.loads(raw)["model"]["vocab"]
    first, second = (token for token, row in vocabulary.items() if row in (300, 301))
    changed = json.loads(raw)
    changed["model"]["vocab"] |= {first: vocabulary[second], second: vocabulary[first]}
    (words / "tokenizer.json").write_text(json.dumps(changed), encoding="utf-8")
    everlearn.fails("merge", one, str(words), "-o", "out", says=("vocabularies", "tokenizer"))
    few_bits = shutil.copytree(one, tmp_path / "few_bits")
    config = json.loads((few_bits / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (few_bits / "config.json").write_text(json.dumps(config), encoding="utf-8")
    everlearn.fails("merge", one, str(few_bits), "-o", "out", says=("'few_bits' was saved in few bits", "averaged"))
    broken = save(tmp_path / "broken", seed=4)
    content = tensors(broken)
    content["transformer.ln_f.bias"][0] = float("nan")
    from safetensors.torch import save_file

    save_file(content, f"{broken}/model.safetensors", {"format": "pt"})
    everlearn.fails("merge", one, broken, "-o", "out", says=("'transformer.ln_f.bias' is not finite",))
    assert not Path("out").exists()
    for arguments, says in (
        (("--method", "tie"), ("no merging method 'tie'", "Did you mean 'ties'?")),
        (("--way", "ties"), ("No such option: --way", "--method")),
        (("--set", "weigths=[1,2]"), ("no option 'weigths'", "Did you mean 'weights'?")),
        (("--set", "weights"), ("`--set` is 'weights'", "key=value")),
        (("--set", "weights=[1,2]", "--set", "weights=[1,1]"), ("more than once",)),
        (("--base", one), ("`--base`", "`mean` does not")),
    ):
        everlearn.fails("merge", one, one.replace("one", "two"), *arguments, "-o", "out", says=says)


def test_files_under_old_names_are_read(everlearn: Project, three: list[str], tmp_path: Path) -> None:
    """GPT-2's own file has no `transformer.` before its tensors."""
    from safetensors.torch import save_file

    _, one, two = three
    old = shutil.copytree(one, tmp_path / "old")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors(one).items()}
    save_file(bare, old / "model.safetensors", {"format": "pt"})
    assert everlearn.call("merge", str(old), two, "-o", "out").code == 0
    assert everlearn.call("merge", one, two, "-o", "wanted").code == 0
    found, wanted = tensors("out"), tensors("wanted")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_fisher_information_is_found_under_old_names(everlearn: Project, three: list[str], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    old = [str(shutil.copytree(each, tmp_path / f"old{number}")) for number, each in enumerate(three[1:])]
    for each in old:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors(each).items()}
        save_file(bare, f"{each}/model.safetensors", {"format": "pt"})
    how = ("--method", "fisher", "--text", "a.jsonl", "--blocks", "2", "--set", "floor=1e-12")
    assert everlearn.call("merge", *old, *how, "-o", "out").code == 0
    assert everlearn.call("merge", *three[1:], *how, "-o", "wanted").code == 0
    found, wanted = tensors("out"), tensors("wanted")
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name]) for name in wanted), "and not the mean"


def test_in_python(three: list[str], tmp_path: Path) -> None:
    import everlearn

    made = everlearn.merge(three[1:], tmp_path / "out", "slerp", {"t": 0.0})
    first, found = tensors(three[1]), tensors(made.folder)
    assert all(torch.allclose(found[name], first[name], atol=1e-6) for name in first)


WORDS = ("zygote", "mitochondria", "ribosome")
TEXTS = [{"text": f"a {WORDS[i % 3]} and the {WORDS[(i + 1) % 3]} keeps it"} for i in range(60)]


def flat(folder: Path) -> Path:
    """A model that finds every token equally likely, whatever it reads."""
    model = tiny.model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def project(everlearn: Project) -> Project:
    write_jsonl(everlearn.folder / "cells.jsonl", TEXTS)
    write_jsonl(everlearn.folder / "held-out.jsonl", TEXTS[:12])
    everlearn.recipe["model"] = str(flat(everlearn.folder / "flat"))
    everlearn.recipe["domains"] = [{"name": "cells", "path": "cells.jsonl", "validation": "held-out.jsonl"}]
    everlearn.recipe["data"]["block_size"] = 16
    return everlearn


def test_bits_per_byte_compare_a_model_with_its_extension(project: Project) -> None:
    """Of a flat distribution over V tokens they are log2(V) tokens / bytes, before and after."""
    project.recipe["evaluation"]["blocks"] = 64  # all rows are scored, so the bytes are those of all held-out text
    found = project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "20", "--json")
    assert found.code == 0, found.err
    said = json.loads(found.out)
    assert said["vocabulary"][1] - said["vocabulary"][0] == len(said["tokens"]) > 5
    assert said["bytes_per_token"][1] > 1.5 * said["bytes_per_token"][0]
    model, words = (each.from_pretrained(project.folder / "extended") for each in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.vocab_size == len(words) == said["vocabulary"][1]
    outcome = project("evaluate", "before=flat", "after=extended", "--on", "recipe.yaml", "-o", "measured", "--json")
    assert outcome.code == 0, outcome.err
    tables = json.loads(outcome.out)["matrices"]
    assert next(iter(tables)) == "bits_per_byte"
    scores = {(name, row): value for name, table in tables.items() for row, _, value, *_ in table["cells"]}
    for number, (row, folder) in enumerate((("before", "flat"), ("after", "extended"))):
        words = AutoTokenizer.from_pretrained(project.folder / folder)
        bits = math.log2(len(words))
        ids = words([line["text"] for line in TEXTS[:12]], add_special_tokens=False)["input_ids"]
        size = sum(len(line["text"].encode()) for line in TEXTS[:12])
        assert scores["loss", row] == pytest.approx(math.log(len(words)), rel=1e-5)  # says nothing of the two
        cell = Cell.load(set_path(project.folder / "measured" / "evaluation", number, "cells"))
        # What is predicted of a document: its tokens and its end.
        assert cell.facts["bytes_per_token"] == pytest.approx(size / sum(len(each) + 1 for each in ids), rel=0.02)
        assert scores["bits_per_byte", row] == pytest.approx(bits / cell.facts["bytes_per_token"], rel=1e-5)
    assert scores["bits_per_byte", "after"] < 0.8 * scores["bits_per_byte", "before"]


def test_words_are_found_in_rows_of_any_kind(project: Project) -> None:
    """In chats, answers and columns inside columns, by the advice of the error."""
    texts = [row["text"] for row in TEXTS]
    kinds: dict[str, list[dict[str, Any]]] = {
        "chats": [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": t}]} for t in texts],
        "answers": [{"instruction": "?", "input": "", "output": text} for text in texts],
        "nested": [{"doc": {"text": text}} for text in texts],
        "another": [{"content": text} for text in texts],
    }
    for kind, rows in kinds.items():
        write_jsonl(project.folder / f"{kind}.jsonl", rows)
    found = {}
    for kind in ("cells", "chats", "answers", "another"):
        outcome = project("extend", "flat", f"of-{kind}", "--text", f"{kind}.jsonl", "--tokens", "20", "--json")
        assert outcome.code == 0, outcome.err
        found[kind] = [token["text"] for token in json.loads(outcome.out)["tokens"]]
    assert all(tokens == found["cells"] for tokens in found.values())
    asked = ("extend", "flat", "of-nested", "--text", "nested.jsonl", "--tokens", "20")
    project.fails(*asked, says=("give `--text-column '{doc.text}'`",))
    assert project(*asked, "--text-column", "{doc.text}").code == 0


def test_a_run_goes_on_from_an_extended_base(project: Project) -> None:
    assert project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "8").code == 0
    project.recipe |= {"model": "extended", "method": "ewc"}
    project.recipe["domains"].append({"name": "a", "path": "a.jsonl", "validation": 0.2})
    outcome = project("run", "recipe.yaml", "train.max_steps=2")
    assert outcome.code == 0, outcome.err
    stage = next(project.run_folder.glob("stage-02-a"))
    assert len(AutoTokenizer.from_pretrained(stage)) == AutoModelForCausalLM.from_pretrained(stage).config.vocab_size
    assert Results.load(project.run_folder).domains == ["cells", "a"]


def test_new_tokens_that_an_adapter_does_not_train_are_named_and_the_advice_works(project: Project) -> None:
    """LoRA leaves the rows of new tokens where they are; its option moves them, and so does full training."""
    assert project("extend", "flat", "extended", "--text", "cells.jsonl", "--tokens", "8").code == 0
    says = r"extended was extended by 8 tokens, whose .* does not train: .* `trainable_token_indices: new`, or learn"
    new = slice(-8, None)
    advised = {"name": "lora", "trainable_token_indices": "new"}
    for number, (method, moves) in enumerate((("lora", False), (advised, True), ("mas", True))):
        project.recipe |= {"model": "extended", "method": method}
        outcome = project("run", "recipe.yaml", "train.max_steps=2", f"run.folder=runs/{number}")
        assert outcome.code == 0, outcome.err
        assert (re.search(says, outcome.err + outcome.out) is not None) is not moves
        stage = next((project.folder / "runs" / str(number)).glob("stage-01-*"))
        before, after = (
            AutoModelForCausalLM.from_pretrained(path).get_input_embeddings().weight[new]
            for path in (project.folder / "extended", stage)
        )
        assert torch.equal(before, after) is not moves


def test_what_cannot_be_extended_gets_a_sentence(project: Project) -> None:
    project.fails("extend", "flat", "flat", "--text", "cells.jsonl", says=("flat exists already",))
    project.fails("extend", "flat", "new", "--text", "nowhere.jsonl", says=("nowhere.jsonl",))
    write_jsonl(project.folder / "few.jsonl", TEXTS[:2])
    project.fails("extend", "flat", "new", "--text", "few.jsonl", says=("there is nothing to add",))
    project.fails("extend", "flat", "new", "--text", "cells.jsonl", "--initialise", "zero", says=("pieces or mean",))
    assert not (project.folder / "new").exists()


# -- ``everlearn repair`` as a user types it, on a run that forgets ----------------------------------------------------


def scrambled(count: int) -> list[dict[str, str]]:
    """Text of other letters than the general text's."""
    generator = random.Random(5)
    return [{"text": " ".join("".join(generator.choices("XYZQ", k=4)) for _ in range(40))} for _ in range(count)]


@pytest.fixture
def forgetful(everlearn: Project) -> Project:
    """A run that learns scrambled text at a high rate and loses the general text."""
    write_jsonl(everlearn.folder / "a.jsonl", scrambled(60))
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.5}
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["train"] |= {"max_steps": 12, "learning_rate": 0.03, "lr_scheduler_type": "constant"}
    everlearn.recipe["evaluation"] |= {"blocks": 48, "samples": 0}
    assert everlearn("run", "recipe.yaml").code == 0
    return everlearn


def bits(learner: ContinualLearner, model: torch.nn.Module, half: int) -> float:
    """Bits per byte of a half of the general text, from the model's own logits, in float64."""
    scorer = learner.scorer()
    path = scorer.held_out("general").path
    part = HeldOutText(path, None, None, half).held_out
    rows, widths = part.blocks, part.rows["bytes_per_token"]
    objective = scorer.conditions(0).objective
    nats = read = 0.0
    for row in range(len(rows)):
        batch = objective.collate(rows.take([row]), [row])
        with torch.no_grad():
            logits = model(**objective.inputs(batch), **objective.options()).logits[0].double().log_softmax(-1)
        for place, label in zip(batch["positions"][0].tolist(), batch["labels"][0].tolist(), strict=True):
            if label != -100:
                nats, read = nats - float(logits[place, label]), read + float(widths[row])
    return nats / math.log(2) / read


def test_a_budget_is_kept_and_what_is_left_is_told(forgetful: Project) -> None:
    run = str(forgetful.run_folder)
    whole = json.loads(forgetful.call("repair", run, "--budget", "100", "--json").out)
    assert (whole["step"], len(whole["curve"])) == (1, 1), "one look is enough"
    assert whole["remains"]["a"]["share"]["value"] == 1
    assert whole["lost"]["value"] == whole["whole"]["value"] > 0.1, "it forgets"

    budget = whole["whole"]["value"] / 10
    shown = forgetful.call("repair", run, "--budget", f"{budget}", "-o", "repaired")
    assert shown.code == 0, shown.err
    assert "What remains of the domains" in shown.out
    assert "Model: repaired" in shown.out
    found = json.loads((forgetful.run_folder / "repair.json").read_text(encoding="utf-8"))
    assert 0 < found["step"] < 1
    assert {point["step"] for point in found["curve"]} >= {found["step"], 1.0}
    at = {point["step"]: point["value"] for point in found["curve"]}
    assert at[found["step"]] <= budget
    assert all(value > budget for step, value in at.items() if step > found["step"])
    assert found["step"] + 0.01 >= min(step for step, value in at.items() if value > budget)
    left = found["remains"]["a"]
    assert left["role"] == "learnt in between"
    assert left["share"]["value"] == pytest.approx(left["left"]["value"] / left["learnt"]["value"])
    page = (forgetful.run_folder / "repair.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "Repair: base and a" in page

    # The model that was written is at that step, and loses what was said: measured here by other means.
    learner = ContinualLearner.open(run)
    start, end = (dict(learner.model_after(index).state_dict()) for index in (0, 1))
    model = AutoModelForMaskedLM.from_pretrained("repaired").eval()
    for name, tensor in load_file("repaired/model.safetensors").items():
        wanted = start[name].double() + found["step"] * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-7)
    before = learner.model_after(0).eval()
    for half, said in ((0, at[found["step"]]), (1, found["lost"]["value"])):
        assert bits(learner, model, half) - bits(learner, before, half) == pytest.approx(said, abs=1e-4)
    made = json.loads(Path("repaired/merged.json").read_text(encoding="utf-8"))
    assert made["method"] == {"name": "wise_ft", "alpha": found["step"]}
    assert made["repair"]["budget"] == budget

    sure = json.loads(forgetful.call("repair", run, "--budget", f"{budget}", "--sure", "--json").out)
    assert sure["step"] <= found["step"]
    assert next(p["high"] for p in sure["curve"] if p["step"] == sure["step"]) <= budget

    (forgetful.folder / "mine").mkdir()  # with a training split, which was learnt and is not forgotten
    write_jsonl(forgetful.folder / "mine" / "test.jsonl", [{"text": text} for text in tiny.texts(60, seed=77)])
    write_jsonl(forgetful.folder / "mine" / "train.jsonl", scrambled(60))
    mine = json.loads(forgetful.call("repair", run, "--budget", f"{budget}", "--text", "mine", "--json").out)
    assert mine["text"] == "text"
    assert 0 < mine["step"] < 1
    assert np.isclose(mine["step"], found["step"], atol=0.25)


def causal_bits(learner: ContinualLearner, model: torch.nn.Module, name: str, half: int) -> float:
    """The same of a half of any held-out set, for a model that reads a whole row from left to right."""
    path = learner.scorer().held_out(name).path
    part = HeldOutText(path, None, None, half).held_out
    ids = torch.from_numpy(part.blocks.arrays["input_ids"]).long()
    with torch.no_grad():
        said = model(ids).logits.double().log_softmax(-1)[:, :-1]
    nats = -said.gather(-1, ids[:, 1:, None])
    return float(nats.mean()) / math.log(2) / float(part.rows["bytes_per_token"].mean())


METHODS: dict[str, tuple[Any, float]] = {
    "every weight": ("sequential", 0.01),
    "LoRA, merged": ({"name": "lora", "r": 4, "target_modules": "all-linear"}, 0.1),
    "LoRA, not merged": ({"name": "inc_lora", "r": 4, "target_modules": "all-linear", "merge": False}, 0.1),
}


@pytest.mark.parametrize("method", METHODS)
def test_what_an_earlier_domain_loses_to_a_later_one(everlearn: Project, method: str) -> None:
    """`--from a --on a`, of a causal model: written at the step, it is a plain model and loses what is said."""
    write_jsonl(everlearn.folder / "b.jsonl", scrambled(60))
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    chosen, rate = METHODS[method]
    everlearn.recipe["method"] = chosen
    everlearn.recipe["data"]["isolate_documents"] = False
    everlearn.recipe["train"] |= {"max_steps": 8, "learning_rate": rate, "lr_scheduler_type": "constant"}
    everlearn.recipe["evaluation"] |= {"blocks": 16, "samples": 0}
    done = everlearn("run", "recipe.yaml")
    assert done.code == 0, done.err
    run = everlearn.run_folder
    adapter_alone = not (run / "stage-02-b" / "model.safetensors").is_file()
    assert adapter_alone == ("not merged" in method)

    whole = json.loads(everlearn.call("repair", str(run), "--from", "a", "--on", "a", "--budget", "100", "--json").out)
    assert whole["step"] == 1
    budget = whole["whole"]["value"] / 4
    assert budget > 0.002, "it forgets"
    found = package.repair(run, budget, everlearn.folder / "out", on="a", since="a")
    assert (found.since, found.until, found.text) == ("a", "b", "a")
    assert 0 < found.step < 1
    assert found.remains["b"].role == "learnt in between"
    assert found.curve[found.step].value <= budget

    learner = ContinualLearner.open(run)
    start, end = (dict(learner.model_after(index).state_dict()) for index in (1, 2))
    written = load_file(everlearn.folder / "out" / "model.safetensors")
    assert not [name for name in written if "lora" in name]
    for name, tensor in written.items():
        wanted = start[name].double() + found.step * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-7)
    model = AutoModelForCausalLM.from_pretrained(everlearn.folder / "out").eval()
    before = learner.model_after(1).eval()
    lost = causal_bits(learner, model, "a", 1) - causal_bits(learner, before, "a", 1)
    assert lost == pytest.approx(found.lost.value, abs=1e-4)


def test_in_python_mistakes_are_found_before_anything_is_read(finished_run: Path, tmp_path: Path) -> None:
    for options, says in (
        ({"on": "a", "text": "mine.jsonl"}, "Leave one out"),
        ({"on": "a", "folder": finished_run / "out"}, "inside the run"),
        ({"on": "a", "since": "bse"}, "Did you mean 'base'"),
    ):
        with pytest.raises(package.EverlearnError, match=says):
            package.repair(finished_run, 0.02, **options)
    assert not (tmp_path / "out").exists()


def test_mistakes_are_sentences(everlearn: Project, finished_run: Path) -> None:
    run = str(finished_run)
    for arguments, says in (
        ((), ("no general text", "--text")),
        (("--on", "c"), ("`--on` is 'c'", "Known: a, b")),
        (("--on", "a", "--text", "a.jsonl"), ("`--on`", "`--text`")),
        (("--on", "a", "--from", "bse"), ("`--from` is 'bse'", "Did you mean 'base'?")),
        (("--on", "a", "--budget", "-1"), ("--budget",)),
        (("--on", "a", "-o", str(finished_run / "out")), ("inside the run",)),
        (("--text", "nowhere.jsonl"), ("nowhere.jsonl",)),
    ):
        everlearn.fails("repair", run, *arguments, says=says)
