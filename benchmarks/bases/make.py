"""Make the base models for English: small models of three kinds, each pre-trained on all of D0 once, and a smaller one.

    python benchmarks/bases/make.py prepare DATA    text, tokenizers and starts of all bases
    python benchmarks/bases/make.py train BASE      begins, or goes on with, runs/<BASE>
    python benchmarks/bases/make.py ship BASE DATA  weights, tokenizer, log, held-out losses: benchmarks/bases/BASE
    python benchmarks/bases/make.py page            docs/results/english-bases.md of what is shipped

DATA holds ``wikipedia`` and ``books``, each with ``train.jsonl.gz`` and ``validation.jsonl.gz`` (JSON lines with
``text``). BASE is english-decoder, english-decoder-small (made of the shipped decoder), english-encdec or
english-encoder. ``prepare`` makes what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bart
import muon  # noqa: F401  registers the optimizer that the recipes name
import numpy as np
import spans
import torch
from tokenizers import processors
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerBase,
    RobertaConfig,
)

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.data import Domain, PackedBlocks
from everlearn.data import prepare as prepare_data
from everlearn.data.prepare import Prepared
from everlearn.data.readers import read_rows, resolve_files
from everlearn.evaluation.cell import text_cell
from everlearn.evaluation.metrics import METRICS
from everlearn.learner import ContinualLearner
from everlearn.model.loading import load_weights, quiet
from everlearn.model.objectives import make_objective
from everlearn.predictors.block_losses import block_losses
from everlearn.run.progress import Reporter
from everlearn.seeding import seeded
from everlearn_bench.suites.pretraining import start_model, train_tokenizer

HERE = Path(__file__).parent
BUILD = Path("runs/bases")
"""Where the recipes look for text and starts."""
SOURCES = ("books", "wikipedia")
VOCABULARY = 12_288
SENTINELS = 16
POSITIONS = 512
LIMIT = 15 * 10**6
"""Bytes of a shipped folder at most."""
WIDTH, HEADS = 256, 4
BOS, PAD, EOS = 0, 1, 2


# -- the models ---------------------------------------------------------------------------------------------------


def encoder() -> Any:
    """RoBERTa type, 5.7 M parameters; the shape of the first English base."""
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        intermediate_size=1024,
        max_position_embeddings=POSITIONS + 2,  # RoBERTa counts positions from behind the padding token's number
        type_vocab_size=1,
        layer_norm_eps=1e-5,  # as the released RoBERTa; transformers has another default
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    return start_model(config, "english", "start")


def decoder(*purpose: str) -> Any:
    """Llama type, 5.6 M parameters; `purpose` names another random stream."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=704,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    with seeded(*(purpose or ("english-decoder", "start"))):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def small_decoder() -> Any:
    """The first layer of the shipped decoder between its words and its head, 4.0 M parameters."""
    model: Any = load_weights(str(HERE / "english-decoder")).float()
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    return model


def encoder_decoder() -> Any:
    """BART type, 6.8 M parameters: the first English base is its encoder."""
    place = HERE / "english"
    roberta = load_weights(str(place))
    return bart.begun_from(roberta, AutoTokenizer.from_pretrained(place).mask_token_id, SENTINELS)


# -- the tokenizers -----------------------------------------------------------------------------------------------


def same_tokenizer(tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """``<s> text </s>``, as RoBERTa has it."""
    tokenizer.save_pretrained(out)


def begins_text(tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """``<s> text``, as Llama has it: a prompt does not end before the model has answered."""
    core: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    core.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", BOS)])
    tokenizer.save_pretrained(out)


def with_sentinels(tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """``text </s>`` and sentinels behind the vocabulary, as T5 has it."""
    core: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    core.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", EOS)])
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<extra_id_{i}>" for i in range(SENTINELS)]})
    tokenizer.save_pretrained(out)


# -- training -----------------------------------------------------------------------------------------------------


class SpanLearner(ContinualLearner):
    """Learns to fill the gaps of D0: everlearn reads prompts and answers, and here they are made of plain text."""

    def prepared(self, name: str) -> Prepared:
        """Corrupted rows of the domain's text, made once."""
        if name not in self._prepared:
            domain = next(domain for domain in self.recipe.domains if domain.name == name)
            self._prepared[name] = corrupted(domain, self.some_tokenizer(), self.recipe.run.seed)
        return self._prepared[name]


def corrupted(domain: Domain, tokenizer: PreTrainedTokenizerBase, seed: int) -> Prepared:
    """A domain's text, and what is held out of it, as prompts and answers."""
    plain = prepare_data(domain, tokenizer, "decoder", spans.ROW, seed=seed)
    sentinels = np.array(tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(spans.GAPS)]))
    parts: dict[str, PackedBlocks] = {}
    for part, blocks in (("train", plain.train), ("validation", plain.validation)):
        if blocks is None:
            continue
        assert isinstance(blocks, PackedBlocks)
        rows: Any = blocks.arrays["input_ids"]
        arrays = spans.corrupted(rows, sentinels, EOS, seed, part, "spans")
        parts[part] = PackedBlocks(
            dict(zip(("input_ids", "labels"), arrays, strict=True)), seed, f"{domain.name}/{part}"
        )
    return Prepared(
        train=parts["train"],
        validation=parts.get("validation"),
        documents=plain.documents,
        tokens=plain.tokens,
        bytes=plain.bytes,
        # Sentinels and ends are part of what must be said about the removed text.
        bytes_per_token=plain.bytes_per_token * spans.REMOVED / spans.ANSWER,
        fingerprint=parts["train"].fingerprint,
        counts=plain.counts,
    )


class Times(Reporter):
    """Writes down what each session of a training took, on the wall and of the processor."""

    EVERY = 50

    def __init__(self, file: Path) -> None:
        self.file = file

    def say(self, text: str) -> None:
        """Into the log of the process."""
        print(text, flush=True)

    @contextlib.contextmanager
    def activity(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """Count the steps of a training; anything else is only named."""
        self.say(text)
        earlier = files.read_json(self.file) if self.file.is_file() else []
        wall, processor = time.monotonic(), time.process_time()
        first: list[int] = []

        def done(step: int) -> None:
            if not first:
                first.append(step)
            if step % self.EVERY == 0 or step == total:
                spent = {"seconds": time.monotonic() - wall, "processor_seconds": time.process_time() - processor}
                row = {"first": first[0], "last": step, "of": total} | {k: round(v, 1) for k, v in spent.items()}
                files.write_json(self.file, [*earlier, row])

        yield done if text.startswith("Learning") else lambda step: None


# -- the bases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """What is particular to a base.

    Attributes:
        kind: of the model.
        start: makes the model to begin with.
        tokenizer: writes the tokenizer that belongs to it.
        learner: trains it.
        shipped: changes of the shipped configuration. Dropout is off while pre-training, and on where the architecture
            has it: DAS measures general importance by it.
        probabilities: shares of masked tokens with which held-out text is read.
    """

    kind: str
    start: Callable[[], Any]
    tokenizer: Callable[[PreTrainedTokenizerBase, Path], None]
    learner: type[ContinualLearner]
    shipped: dict[str, float]
    probabilities: tuple[float, ...] = ()


BASES = {
    "english-decoder": Base("decoder", decoder, begins_text, ContinualLearner, {}),
    "english-decoder-small": Base("decoder", small_decoder, begins_text, ContinualLearner, {}),
    "english-encdec": Base("encoder-decoder", encoder_decoder, with_sentinels, SpanLearner, {"dropout": 0.1}),
    "english-encoder": Base(
        "encoder", encoder, same_tokenizer, ContinualLearner, {"hidden_dropout_prob": 0.1}, (0.15, 0.3)
    ),
}


def texts(data: Path, split: str) -> list[str]:
    """The distinct texts of all sources, mixed: in the order of their hashes, which is the same everywhere."""
    by_digest: dict[bytes, str] = {}
    for source in SOURCES:
        for file in resolve_files(str(data / source / f"{split}.jsonl.gz")):
            for row in read_rows(file, ["text"]):
                text = str(row.values["text"])
                by_digest[hashlib.blake2b(text.encode(), digest_size=12).digest()] = text
    return [text for _, text in sorted(by_digest.items())]


def prepare(data: Path) -> None:
    """Write ``text``, ``tokenizer`` and every base's ``start`` into :data:`BUILD`, as far as they are not there."""
    parts: dict[str, list[str]] = {}
    if files.damage(BUILD / "text") is not None:
        parts = {split: texts(data, split) for split in ("train", "validation")}
        with files.new_folder(BUILD / "text") as folder:
            for split, part in parts.items():
                lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in part)
                files.write_text(folder / f"{split}.jsonl", "".join(lines))
    if files.damage(BUILD / "tokenizer") is not None:
        with files.new_folder(BUILD / "tokenizer") as folder:
            train_tokenizer(parts.get("train") or texts(data, "train"), folder, VOCABULARY, POSITIONS)
    for name, base in BASES.items():
        if files.damage(BUILD / name / "start") is not None:
            with files.new_folder(BUILD / name / "start") as folder:
                base.tokenizer(AutoTokenizer.from_pretrained(BUILD / "tokenizer"), folder)
                base.start().save_pretrained(folder)


def train(name: str) -> None:
    """Begin a base's run, or go on with it."""
    recipe = recipes.load(HERE / name / "recipe.yaml")
    learner = BASES[name].learner(recipe, reporter=Times(recipe.folder() / "sessions.json"))
    if learner.folder.recipe_file.exists():
        learner.resume()
    else:
        learner.run()


def measure(folder: Path, base: Base, data: Path) -> dict[str, Any]:
    """Loss in nats and bits per byte on all of each source's validation text."""
    recipe = recipes.load(HERE / folder.name / "recipe.yaml")
    model: nn.Module = load_weights(str(folder), recipe.model.attn_implementation)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = recipe.data.block_size or 0
    results: dict[str, Any] = {}
    for source in SOURCES:
        domain = Domain(name=f"{source}-held-out", path=str(data / source / "validation.jsonl.gz"), validation=None)
        if base.learner is SpanLearner:
            prepared = corrupted(domain, tokenizer, 0)
        else:
            prepared = prepare_data(domain, tokenizer, base.kind, size, seed=0)  # type: ignore[arg-type]
        blocks = prepared.train
        assert isinstance(blocks, PackedBlocks)
        row: dict[str, Any] = {"blocks": len(blocks), "bytes_per_token": round(prepared.bytes_per_token, 4)}
        read = {"": blocks} | ({", another prompt": another_prompt(blocks)} if base.learner is SpanLearner else {})
        for probability, (how, what) in itertools.product(base.probabilities or (None,), read.items()):
            options = {} if probability is None else {"mask_probability": probability}
            objective = make_objective(recipe.objective, model, tokenizer, **options)
            losses = block_losses(model, what, objective, batch_size=16)
            cell = text_cell(losses.nats, losses.items, prepared.bytes_per_token)
            label = (objective.name if probability is None else f"{objective.name} {probability}") + how
            row[label] = {key: round(METRICS[key].score(cell), 4) for key in ("loss", "bits_per_byte")}
        results[source] = row
    return results


def another_prompt(blocks: PackedBlocks) -> PackedBlocks:
    """Each answer behind the prompt of the row before: what a model loses by it is what it gets from reading."""
    rows: Any = blocks.arrays["input_ids"]
    return PackedBlocks({**blocks.arrays, "input_ids": np.roll(rows, 1, axis=0)}, 0, "another prompt")


def ship(name: str, data: Path) -> None:
    """Put a finished base beside its recipe: weights in bf16, checksum, tokenizer, log, times, held-out losses.

    Raises:
        SystemExit: the folder would be too large; it stays as it was.
    """
    base, out = BASES[name], HERE / name
    recipe = recipes.load(out / "recipe.yaml")
    run = recipe.folder()
    stage = run / f"stage-01-{recipe.domains[0].name}"
    if (wrong := files.damage(stage)) is not None:
        raise SystemExit(f"{name} is not finished: {wrong}")
    model: Any = load_weights(str(stage))
    model.config.update(base.shipped)
    with tempfile.TemporaryDirectory(dir=run) as folder:
        new = Path(folder)
        model.bfloat16().save_pretrained(new)
        for part in ("tokenizer.json", "tokenizer_config.json"):  # without white space: half the size
            content = json.loads((BUILD / name / "start" / part).read_text("utf-8"))
            files.write_text(new / part, json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        files.write_json(new / "checksum.json", {"model.safetensors": files.digest(new / "model.safetensors")})
        files.write_text(new / "metrics.jsonl", (run / "metrics.jsonl").read_text("utf-8"))
        environment = files.read_json(run / "environment.json")
        shown = {key: environment[key] for key in ("packages", "processors", "threads")} | {"processor": processor()}
        sessions = files.read_json(run / "sessions.json")
        files.write_json(new / "training.json", {"environment": shown, "sessions": sessions} | facts(stage))
        kept = [path for path in out.iterdir() if path.is_file() and not (new / path.name).exists()]
        size = sum(path.stat().st_size for path in [*new.iterdir(), *kept])
        if size > LIMIT:
            raise SystemExit(f"{out} would hold {size} bytes; at most {LIMIT} are shipped.")
        for path in sorted(new.iterdir()):
            path.chmod(0o644)
            os.replace(path, out / path.name)
    training = files.read_json(out / "training.json")
    files.write_json(out / "training.json", training | {"heldout": measure(out, base, data)})


def facts(stage: Path) -> dict[str, Any]:
    """What is worth keeping of a stage's own account."""
    stage_facts = files.read_json(stage / "stage.json")
    return {key: stage_facts[key] for key in ("steps", "tokens", "training_seconds", "peak_memory_bytes", "final_loss")}


def processor() -> str:
    """The kind of processor, as Linux names it, and whether it multiplies bf16."""
    cpu_info = Path("/proc/cpuinfo")
    lines = (
        dict(line.split(":", 1) for line in cpu_info.read_text().splitlines() if ":" in line)
        if cpu_info.exists()
        else {}
    )
    words = {key.strip(): value.strip() for key, value in lines.items()}
    kind = "{} family {} model {}".format(*(words.get(key, "?") for key in ("model name", "cpu family", "model")))
    return kind + (", avx512_bf16" if "avx512_bf16" in words.get("flags", "").split() else "")


PAGE = HERE.parents[1] / "docs" / "results" / "english-bases.md"
INTRODUCTION = """# Encoder, decoder and encoder-decoder for English

Small models of different kinds, each pre-trained once on all of D0: 34,570 documents of the English Wikipedia and of
books, 115 MB, in the order of their hashes. `english-decoder-small` is the first layer of `english-decoder`, trained
on a part of D0 again. `benchmarks/bases/README.md` says how they are made, and what an encoder-decoder lost that never
learnt to read its prompt. `make.py page` writes this page from what each training recorded. [The small
encoder](english-base.md) that saw a third of this text is older and has a page of its own.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines) + "\n"


def curve(log: Sequence[dict[str, Any]], points: int = 12) -> list[tuple[int, float]]:
    """Logged losses nearest to twelve steps whose distances double at first and are equal later."""
    lines = [(line["step"], line["loss"]) for line in log if "loss" in line]
    last = lines[-1][0]
    steps = [last * 2 ** -(points // 2 - i) / 4 for i in range(points // 2)]
    steps += [last * (1 + 3 * i / (points // 2)) / 4 for i in range(1, points // 2 + 1)]
    return sorted({min(lines, key=lambda line: abs(line[0] - step)) for step in steps})


def write_page() -> None:
    """Write the results page from what lies beside the recipes."""
    shipped = {name: HERE / name for name in BASES if (HERE / name / "training.json").is_file()}
    parts = [INTRODUCTION]
    rows = []
    for name, place in shipped.items():
        training = files.read_json(place / "training.json")
        hours = [sum(one[key] for one in training["sessions"]) / 3600 for key in ("seconds", "processor_seconds")]
        speed = training["tokens"] / hours[1] / 3600
        rows.append([name, f"{training['steps']:,}", f"{training['tokens'] / 1e6:.1f} M", *(f"{h:.1f}" for h in hours)])
        rows[-1] += [f"{speed:,.0f}", digest_of(place)]
    head = ["base", "steps", "tokens", "hours", "processor hours", "tokens a processor second", "weights"]
    parts += ["## Training\n", table(head, rows)]
    parts.append(
        "One core of a machine that was busy with other work too, hence two kinds of hours. The encoder-decoder's"
    )
    parts.append("tokens are those of its prompts and answers.\n")
    parts.append("## Held-out text\n\nThe shipped bf16 weights on all of the validation text.\n")
    rows = []
    for name, place in shipped.items():
        for source, measurements in files.read_json(place / "training.json")["heldout"].items():
            for label, values in measurements.items():
                if isinstance(values, dict):
                    rows.append([name, source, label, values["loss"], values["bits_per_byte"]])
    parts.append(table(["base", "source", "objective", "nats a label", "bits per byte"], rows))
    parts.append(
        "Text-to-text counts the removed text alone, and what its sentinels and end cost too (another prompt: that of"
    )
    parts.append("the row before, so that a difference is what the model gets from reading); masked models the")
    parts.append("text of masked tokens. Bits of different objectives do not compare.\n")
    parts.append("## Curves\n\nTraining loss in nats a label, mean of 100 steps.\n")
    for name, place in shipped.items():
        log = [json.loads(line) for line in (place / "metrics.jsonl").read_text("utf-8").splitlines()]
        points = curve(log)
        parts.append(table([name, *(f"{s:,}" for s, _ in points)], [["loss", *(f"{v:.2f}" for _, v in points)]]))
    if (HERE / "optimizers.json").is_file():
        parts.append("## The optimizer\n\nThe decoder for the same processor seconds each, `optimizers.py`.\n")
        rows = []
        for tried in files.read_json(HERE / "optimizers.json"):
            rows.append([tried[key] for key in ("name", "seconds", "steps", "tokens", "heldout")])
        parts.append(table(["optimizer", "seconds", "steps", "tokens", "held-out loss"], rows))
    files.write_text(PAGE, "\n".join(parts).rstrip() + "\n")


def digest_of(place: Path) -> str:
    """The checksum of shipped weights."""
    return str(files.read_json(place / "checksum.json")["model.safetensors"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("prepare", "train", "ship", "page"):
        one = commands.add_parser(command)
        if command in ("train", "ship"):
            one.add_argument("base", choices=sorted(BASES))
        if command in ("prepare", "ship"):
            one.add_argument("data", type=Path)
    chosen = parser.parse_args()
    quiet()
    if chosen.command == "prepare":
        prepare(chosen.data)
    elif chosen.command == "train":
        train(chosen.base)
    elif chosen.command == "ship":
        ship(chosen.base, chosen.data)
    else:
        write_page()


if __name__ == "__main__":
    main()
