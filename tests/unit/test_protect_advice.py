"""What the refusals of `protect` advise is done here, and works; each sentence has such a test, or a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LNTuningConfig, LoraConfig, OFTConfig, PeftModel, PromptTuningConfig, get_peft_model
from protected_run import collator, rows, trainer_of
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments, default_data_collator

import everlearn
import tiny
from everlearn import protect
from everlearn.errors import EverlearnError

TEXTS = tiny.texts(60, seed=3)


class Stream(IterableDataset):
    """A dataset without a length."""

    def __iter__(self) -> Any:
        yield from rows()


def trained(folder: Path, methods: Any = ("ewc",), *, domain: Any = None, held_out: Any = None, **changes: Any) -> Any:
    """A protected training; `changes` are arguments of the Trainer, or attributes of it."""
    known = set(TrainingArguments.__dataclass_fields__)
    trainer = trainer_of(tiny.model("gpt2"), folder, **{k: v for k, v in changes.items() if k in known})
    for name, value in changes.items():
        if name not in known:
            setattr(trainer, name, value)
    protect(trainer, list(methods), memory=folder / "memory", domain=domain, held_out=held_out).train()
    return trainer


def looped(folder: Path, use: Callable[[Any, Any], None], methods: Any = ("ewc",), model: Any = None) -> None:
    """A protected loop, of which `use` gets the loop and the optimizer."""
    model = tiny.model("gpt2") if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"memory": folder / "memory", "data": rows(), "collate": collator("gpt2")}
    with protect(model, optimizer, list(methods), **options) as protected:
        use(protected, optimizer)


def step(protected: Any, optimizer: Any) -> None:
    """A step as the documentation has it."""
    protected.loss(dict(collator("gpt2")([protected.data[at] for at in range(2)]))).backward()
    optimizer.step()


def on_own_data(protected: Any, optimizer: Any) -> None:
    protected.loss(dict(collator("gpt2")(rows()[:2]))).backward()
    optimizer.step()


def given_optimizer(folder: Path, given: bool) -> None:
    trainer = trainer_of(tiny.model("gpt2"), folder)
    if given:
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1)
    protect(trainer, ["recadam"], memory=folder / "memory").train()


def twice(folder: Path, again: bool) -> None:
    trainer = trained(folder)
    trained(folder) if again else trainer.train()


def listed(folder: Path, together: bool) -> None:
    trainer = protect(trainer_of(tiny.model("gpt2"), folder), ["ewc", "migu"][: 2 if together else 1], memory=folder)
    if not together:
        protect(trainer, ["migu"], memory=folder)


def side_by_side(folder: Path, afterwards: bool) -> None:
    first, second = (trainer_of(tiny.model("gpt2"), folder) for _ in range(2))
    protect(first, ["l2"], memory=folder / "memory")
    if not afterwards:
        protect(second, ["l2"], memory=folder / "memory")
    first.train()
    if afterwards:
        protect(second, ["l2"], memory=folder / "memory")
    second.train()


def damaged(folder: Path, memory: str) -> None:
    trained(folder, domain="d1")
    file = folder / "memory" / "stage-01-d1" / "ewc.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    protect(trainer_of(tiny.model("gpt2"), folder), ["ewc"], memory=folder / memory).train()


def remembering(folder: Path, methods: list[str]) -> None:
    trained(folder)
    trained(folder, methods)


def columns(folder: Path, **more: Any) -> None:
    trained(folder, ["replay"], train_dataset=[row | more for row in rows()])


def made_by(folder: Path, **given: Any) -> None:
    trainer = Trainer(args=trainer_of(tiny.model("gpt2"), folder).args, train_dataset=rows(),
                      data_collator=collator("gpt2"), **given)  # fmt: skip
    protect(trainer, ["ewc"], memory=folder / "memory").train()


def doubled(examples: list[Any]) -> Any:
    return collator("gpt2")([*examples, *examples])


def of_other_model(folder: Path, own: bool) -> None:
    model = tiny.model("gpt2")
    optimizer = torch.optim.SGD((model if own else tiny.model("gpt2")).parameters(), 0.1)
    protect(model, optimizer, ["ewc"], memory=folder, data=rows(), collate=collator("gpt2"))


def entered(folder: Path, again: bool) -> None:
    model = tiny.model("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"memory": folder / "memory", "data": rows(), "collate": collator("gpt2")}
    protected = protect(model, optimizer, ["ewc"], **options)
    for _ in range(2):
        with protected:
            step(protected, optimizer)
        protected = protect(model, optimizer, ["ewc"], **options) if again else protected


def replayed(folder: Path, use: Callable[[Any, Any], None]) -> None:
    looped(folder, step, ["replay"])
    looped(folder, use, ["replay"])


def of_no_step(protected: Any, optimizer: Any) -> None:
    protected.loss(dict(collator("gpt2")(rows()[:2]))).backward()


def without_a_loss(protected: Any, optimizer: Any) -> None:
    optimizer.step()


def outside(folder: Path, inside: bool) -> None:
    model = tiny.model("gpt2")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    protected = protect(model, optimizer, ["ewc"], memory=folder, data=rows(), collate=collator("gpt2"))
    if inside:
        with protected:
            step(protected, optimizer)
    else:
        step(protected, optimizer)


def scored(folder: Path, text: Any, **changes: Any) -> None:
    trained(folder, held_out=text, **changes)


def general(folder: Path) -> Path:
    file = folder / "general.txt"
    file.write_text("\n".join(TEXTS))
    return file


MAS = {"name": "mas", "samples": 2}
LORA = LoraConfig(r=2, target_modules=["q_proj"])
PROMPTS = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
LAYER_NORMS = LNTuningConfig(task_type="CAUSAL_LM")
ROTATIONS = OFTConfig(target_modules=["q_proj"], oft_block_size=8)
TOKENS = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[380, 381])


def adapted(config: Any = LORA) -> PeftModel:
    return get_peft_model(tiny.model("llama"), config)


def with_model(folder: Path, method: Any, *models: torch.nn.Module) -> None:
    """A domain for each model."""
    for number, model in enumerate(models):
        trainer = trainer_of(model, folder / str(number))
        protect(trainer, [method], memory=folder / "memory", general=TEXTS).train()


def with_one_or_other(folder: Path, first: Any, second: Any) -> None:
    """Both that a sentence advises: (method, model)."""
    with_model(folder / "first", *first)
    with_model(folder / "second", *second)


def quantised() -> PeftModel:
    """A model with one layer in whole numbers, as bitsandbytes keeps them; it is refused before it computes."""
    model = adapted()
    layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.base_layer")
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    return model


def llamas() -> list[torch.nn.Module]:
    return [tiny.model("llama"), tiny.model("llama")]


def domain_after_domain(folder: Path, merge: bool) -> None:
    """Two domains with O-LoRA: with one adapter, or with a new one after the last was merged."""
    first = adapted()
    with_model(folder / "1", "o_lora", first)
    (folder / "2").mkdir()
    (folder / "1" / "memory").rename(folder / "2" / "memory")
    with_model(folder / "2", "o_lora", get_peft_model(first.merge_and_unload(), LORA) if merge else first)


Try = Callable[[Path], Any]
FOLLOWED: dict[str, tuple[Try, Try]] = {
    r"takes a Trainer and methods": (
        lambda at: protect(tiny.model("gpt2"), ["ewc"], memory=at), lambda at: looped(at, step)),
    r"`auto_find_batch_size`.*Unset it": (lambda at: trained(at, auto_find_batch_size=True), trained),
    r"no `train_dataset`.*Give it one": (lambda at: trained(at, train_dataset=None), trained),
    r"\(`model_init`\)\. Give it the model": (
        lambda at: made_by(at, model_init=lambda: tiny.model("gpt2")),
        lambda at: made_by(at, model=tiny.model("gpt2"))),
    r"is a stream.*Give a map-style dataset": (
        lambda at: trained(at, train_dataset=Stream()), lambda at: trained(at, train_dataset=list(Stream()))),
    r"The training dataset has no example": (lambda at: trained(at, train_dataset=[]), trained),
    r"protected already\. List all methods in one call": (lambda at: listed(at, False), lambda at: listed(at, True)),
    r"begun its domain already.*create the model and the trainer again": (
        lambda at: twice(at, False), lambda at: twice(at, True)),
    r"no checkpoint to resume from\. Leave `resume_from_checkpoint` out": (
        lambda at: protect(trainer_of(tiny.model("gpt2"), at), ["ewc"], memory=at / "m").train(True), trained),
    r"chooses the optimizer's settings.*Let the trainer make them": (
        lambda at: given_optimizer(at, True), lambda at: given_optimizer(at, False)),
    r"Domain '.*is learnt already.*give it another name, such as": (
        lambda at: [trained(at, domain="d"), trained(at, domain="d")],
        lambda at: [trained(at, domain="d"), trained(at, domain="d-2")]),
    r"not a valid name of a folder\. Give another one": (
        lambda at: trained(at, domain=""), lambda at: trained(at, domain="d")),
    r"runs kept rows beside each batch.*Use 'replay'": (
        lambda at: trained(at, ["derpp"]), lambda at: trained(at, ["replay"])),
    r"keeps examples, but those.*drop its other columns": (
        lambda at: columns(at, text="a"), columns),
    r"needs batches with `input_ids` and with `labels`.*Use a collator for language modelling": (
        lambda at: trained(at, ["kd"], data_collator=default_data_collator), lambda at: trained(at, ["kd"])),
    r"rows of one example.*Make one row of each": (
        lambda at: trained(at, data_collator=doubled), trained),
    r"fewer than a row.*Give more text": (lambda at: scored(at, ["short"]), lambda at: scored(at, TEXTS)),
    r"needs the model's tokenizer: give the Trainer its `processing_class`": (
        lambda at: scored(at, TEXTS, processing_class=None), lambda at: scored(at, TEXTS)),
    r"has both texts and files.*each under a name": (
        lambda at: scored(at, [*TEXTS, general(at)]),
        lambda at: scored(at, {"texts": TEXTS, "files": [general(at)]})),
    r"is among them\. Of rows, give the text alone": (
        lambda at: scored(at, [{"text": text} for text in TEXTS]), lambda at: scored(at, TEXTS)),
    r"The optimizer does not hold.*Make it of the model's parameters": (
        lambda at: of_other_model(at, False), lambda at: of_other_model(at, True)),
    r"train on `protected\.data`": (
        lambda at: replayed(at, on_own_data), lambda at: replayed(at, step)),
    r"This domain has begun already\. For the next one call `protect` again": (
        lambda at: entered(at, False), lambda at: entered(at, True)),
    r"replaces the optimizer, which a plain loop holds.*Use it in a Trainer": (
        lambda at: looped(at, step, ["recadam"]), lambda at: trained(at, ["recadam"])),
    r"schedule, which a plain loop steps itself.*Use it in a Trainer": (
        lambda at: looped(at, step, ["ulmfit"]), lambda at: trained(at, ["ulmfit"])),
    r"has made no step.*Step with that one": (lambda at: looped(at, of_no_step), lambda at: looped(at, step)),
    r"belongs inside `with protect": (lambda at: outside(at, False), lambda at: outside(at, True)),
    r"steps without a loss of `protected\.loss.*Take the loss from there": (
        lambda at: looped(at, without_a_loss), lambda at: looped(at, step)),
    r"Restore it from a copy, or start again with another folder": (
        lambda at: damaged(at, "memory"), lambda at: damaged(at, "other")),
    r"written there since\. Call `protect` again after it": (
        lambda at: side_by_side(at, False), lambda at: side_by_side(at, True)),
    r"holds the memory of method.*Add it": (
        lambda at: remembering(at, ["migu"]), lambda at: remembering(at, ["ewc", "migu"])),
    r"puts vectors before a text.*Use 'replay'.*or an adapter that changes them, such as LoRA": (
        lambda at: with_model(at, MAS, adapted(PROMPTS)),
        lambda at: with_one_or_other(at, ("replay", adapted(PROMPTS)), (MAS, adapted()))),
    r"are quantised in a way that is not known here.*4 or 8 bits of bitsandbytes, or unquantised": (
        lambda at: with_model(at, MAS, quantised()), lambda at: with_model(at, MAS, adapted())),
    r"whose effective weight is not known here\. Use 'replay'.*or an adapter of linear layers": (
        lambda at: with_model(at, MAS, adapted(LAYER_NORMS)),
        lambda at: with_one_or_other(at, ("replay", adapted(LAYER_NORMS)), (MAS, adapted()))),
    r"in a way that is not known here.*Use one of these, or 'replay'": (
        lambda at: with_model(at, MAS, adapted(ROTATIONS)),
        lambda at: with_one_or_other(at, ("replay", adapted(ROTATIONS)), (MAS, adapted()))),
    r"does not work on a model with PEFT adapters\. Remove one of them": (
        lambda at: with_model(at, "wise_ft", adapted()),
        lambda at: with_one_or_other(at, ("wise_ft", tiny.model("llama")), ("sequential", adapted()))),
    r"its layer is an embedding\. Use `mas` or `ewc`": (
        lambda at: with_model(at, "si", adapted(TOKENS)),
        lambda at: with_one_or_other(at, (MAS, adapted(TOKENS)), ({"name": "ewc", "samples": 2}, adapted(TOKENS)))),
    r"the model already has LoRA adapters, which are not changed\. Remove the option": (
        lambda at: with_model(at, {"name": "o_lora", "r": 4}, adapted()),
        lambda at: with_model(at, "o_lora", adapted())),
    r"needs a new adapter for each domain.*Merge it \(`merge_and_unload`\) and make a new one": (
        lambda at: domain_after_domain(at, False), lambda at: domain_after_domain(at, True)),
    r"pulls single weights, which is not possible with adapters\. Set `apply_to: loss`": (
        lambda at: with_model(at, {**MAS, "apply_to": "update"}, adapted()),
        lambda at: with_model(at, {**MAS, "apply_to": "loss"}, adapted())),
    r"is not known with an external trainer\. Set `balance: fixed`": (
        lambda at: with_model(at, {"name": "multi_task_adaptation", "balance": "uncertainty"}, tiny.model("llama")),
        lambda at: with_model(at, {"name": "multi_task_adaptation", "balance": "fixed"}, tiny.model("llama"))),
    r"here they are shuffled later\. Set one share": (
        lambda at: with_model(at, {"name": "replay", "share": {"start": 0.3, "end": 0.1}}, *llamas()),
        lambda at: with_model(at, {"name": "replay", "share": 0.1}, *llamas())),
    r"saves nothing with adapters, whose gradients are small\. Set it to all-rows": (
        lambda at: with_model(at, {"name": "migu", "gradient_of": "kept-rows"}, adapted()),
        lambda at: with_model(at, {"name": "migu", "gradient_of": "all-rows"}, adapted())),
}  # fmt: skip
"""Sentence → what is refused with it, and what it advises."""


@pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning")
@pytest.mark.parametrize("sentence", FOLLOWED)
def test_the_advice_works(sentence: str, tmp_path: Path) -> None:
    refused, advised = FOLLOWED[sentence]
    (tmp_path / "refused").mkdir()
    with pytest.raises(EverlearnError, match=sentence):
        refused(tmp_path / "refused")
    (tmp_path / "advised").mkdir()
    advised(tmp_path / "advised")


ELSEWHERE = {
    "has plain text and answers": "test_of_held_out_chats_the_answers_are_scored",
    "works with a Trainer only": "test_it_ends_with_the_last_step_within_the_bound_where_the_domain_has_no_text",
    "has rows that are not like the examples": "test_general_text_is_not_mixed_into_preferences_and_the_advice_works",
    "takes each row of a batch for an example": "test_a_flat_batch_is_no_row_for_each_example_and_the_advice_works",
    "reads what a model predicts of text": "test_a_reward_model_predicts_no_text_and_the_advice_works",
    "measures on the loss of single examples": "test_what_cannot_be_measured_is_refused_and_the_advice_works",
    "divides embeddings by their length": "test_what_cannot_be_measured_is_refused_and_the_advice_works",
    "keeps examples of earlier domains": "test_the_advice_on_replay_in_grpo_works",
    "dataset has prompts alone": "test_grpo_has_nothing_to_measure_on_before_its_first_step_and_the_advice_works",
    "does not predict: it has no vocabulary head": "test_a_reward_model_predicts_no_text_and_the_advice_works",
    "which an encoder-decoder does not learn": "test_an_encoder_decoder_has_the_penalties_and_weights_of_our_engine",
    "and `stop` keeps": "test_an_output_folder_of_another_training_is_refused_and_the_advice_works",
    "counts what it has generated in itself": "test_grpo_goes_back_to_its_best_step_and_not_on_from_it",
    "FSDP 1 hides": "test_two_processes_with_shards_learn_what_one_learns",
    **dict.fromkeys(
        (
            "has no effect without `stop`", "is a number of steps, 1 or more", "`stop_then` is one of",
            "`stop` without a bound ends at", "needs a bound: give `stop` one", "`stop` decides which weights",
            "which `save_only_model` leaves incomplete", "`stop` needs text to measure on",
            "which is no text of `held_out`", "is a number of bits per byte",
        ),
        "test_what_cannot_be_decided_is_refused_and_the_advice_works",
    ),
    **dict.fromkeys(
        (
            "FSDP cannot shard", "goes back to an earlier step",
            "does not work under DeepSpeed", "several GPUs in one process",
        ),
        "test_two_processes_go_back_together",  # with DDP, which they advise
    ),
}  # fmt: skip
"""Part of a sentence → the test that follows its advice, or trains as it advises."""

NO_ADVICE = (
    "The protected training has not ended yet", "Of the earlier models, this training has",
    "and this training has none",
    "was not written by a protected training", "is a checkpoint of domain", "and '' is none of them",
    "so that a single one has none", "was not scored before the training", "The trainer itself trains on these rows",
)  # fmt: skip
"""Sentences that only say what is wrong."""

NOT_TRIED = {
    "in rows as a run packs them. Use it with `everlearn run`": "every method is trained so in tests/conformance",
    "generates rows as a run packs them. Use it with `everlearn run`": "the same",
    "'' .  it with `everlearn run`": "every method is trained by `everlearn run` in tests/conformance",
    "Use the collator of Sentence Transformers": "test_protect_sentence_transformers.py trains with it throughout",
    "Use the collator of TRL's RewardTrainer": "test_protect_trl.py trains with it throughout",
}
"""Sentences without a test that follows them, and why."""


def sentences() -> list[str]:
    """The constant parts of all errors that users of `protect` read."""
    root = Path(everlearn.__file__).parent
    found = [each for file in [*root.glob("protecting/*.py"), root / "model/adapted.py"] for each in errors(file)]
    methods = [each for file in root.glob("methods/**/*.py") for each in errors(file)]
    return [each for each in [*found, *(each for each in methods if ABOUT_PROTECT.search(each))] if each]


ABOUT_PROTECT = re.compile(
    r"PEFT adapters|with adapters|with its adapter|has LoRA adapters|new adapter for each|external trainer"
    r"|everlearn run|shuffled later|adapters that FSDP2"
)
"""What the errors of methods say to users of `protect`, whose model and data are their own."""


def errors(file: Path) -> list[str]:
    """The constant parts of the errors of a file."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error"):
            parts = [part for arg in node.args for part in getattr(arg, "values", [arg])]
            found.append("".join(str(part.value) for part in parts if isinstance(part, ast.Constant)))
    return found


def test_every_sentence_is_followed_or_says_why_not() -> None:
    plain = [*ELSEWHERE, *NO_ADVICE, *NOT_TRIED]
    used: set[str] = set()
    for sentence in sentences():
        matched = {part for part in plain if part in sentence} | {r for r in FOLLOWED if re.search(r, sentence)}
        assert matched, f"no test follows the advice of: {sentence}"
        used |= matched
    assert used == {*plain, *FOLLOWED}, "listed, and no sentence any more"


def test_the_tests_elsewhere_are_there() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert not [name for name in ELSEWHERE.values() if f"def {name}(" not in text]
