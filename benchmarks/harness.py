"""What the speed benchmarks share: small models, packed rows, trainers, and timing in turns.

A machine's speed wanders (other processes, heat, memory), so two ways of training are never timed one after the other:
they run in short segments in turns, A B A B …, each segment a fresh call of ``train()`` on the same model of which the
first steps are not counted. Reported are medians over segments, in wall time and in processor time of this process;
the latter hardly feels other processes.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    PrinterCallback,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from everlearn.config.arguments import training_arguments
from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import BlockLoader
from everlearn.files import write_json
from everlearn.methods.base import Method, Stage
from everlearn.methods.engine.protection import Protection
from everlearn.model.objectives import make_objective
from everlearn.protecting.domain import as_its_class_computes
from everlearn.run.trainer import StageTrainer
from everlearn_bench.suites.docs import base_path

VOCABULARY = 8192
LENGTH = 128
SMALL: dict[str, dict[str, Any]] = {
    "roberta": {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": 258,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.0,
    },
    "gpt2": {
        "vocab_size": VOCABULARY,
        "n_embd": 256,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 256,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.0,
    },
}
FULL: dict[str, dict[str, dict[str, Any]]] = {
    "base": {
        "roberta": {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
        "gpt2": {"vocab_size": 50257},
    },
    "large": {"gpt2": {"vocab_size": 50257, "n_embd": 2048, "n_layer": 18, "n_head": 16}},
}
"""Sizes for accelerators: an encoder or a decoder of 125 M parameters, a decoder of 1 B. The rest is the default."""
SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


@dataclass
class Timing:
    """Seconds per step of the counted steps of each segment."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def summary(self, tokens: int) -> dict[str, Any]:
        """Medians, and tokens per second from them; `tokens` are those of a step."""
        wall, processor = statistics.median(self.wall), statistics.median(self.processor)
        return {
            "seconds_per_step": wall,
            "processor_seconds_per_step": processor,
            "tokens_per_second": tokens / wall,
            "tokens_per_processor_second": tokens / processor,
            "segments": {"wall": self.wall, "processor": self.processor},
        }


class Clock(TrainerCallback):
    """Takes the time between the end of step `warmup` and the end of the last step."""

    def __init__(self, timing: Timing, warmup: int) -> None:
        self.timing, self.warmup = timing, warmup
        self.start = (0.0, 0.0)

    @staticmethod
    def now() -> tuple[float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.warmup:
            self.start = self.now()
        elif state.global_step == state.max_steps:
            wall, processor = self.now()
            steps = state.max_steps - self.warmup
            self.timing.wall.append((wall - self.start[0]) / steps)
            self.timing.processor.append((processor - self.start[1]) / steps)


Contender = Callable[[Clock, int], Trainer]
"""Makes a trainer of that many steps with this clock in it."""


def tokenizer() -> PreTrainedTokenizerBase:
    """The demo's tokenizer, which the package carries."""
    return AutoTokenizer.from_pretrained(base_path())


def random_model(kind: str, device: str, size: str = "small", vocabulary: int | None = None) -> nn.Module:
    """The demo's encoder ("roberta"), or a decoder of its size ("gpt2"): 5 M parameters, random; or one of FULL."""
    torch.manual_seed(0)
    sizes = SMALL if size == "small" else FULL[size]
    own = {"vocab_size": vocabulary} if vocabulary else {}
    config = AutoConfig.for_model(kind, **{**sizes[kind], **own}, **SPECIAL)
    auto = AutoModelForMaskedLM if kind == "roberta" else AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.float32).to(device)


def packed_rows(rows: int, length: int = LENGTH, documents: int = 3) -> dict[str, np.ndarray]:
    """Full rows of random tokens in a few documents each; what the tokens are does not change the speed."""
    generator = np.random.default_rng(0)
    cuts = np.sort(generator.integers(8, length - 8, (rows, documents - 1)), axis=1)
    segments = (np.arange(length)[None, :, None] >= cuts[:, None, :]).sum(2)
    ids = generator.integers(5, VOCABULARY, (rows, length))
    return {"input_ids": ids.astype(np.int32), "segments": segments.astype(np.int32)}


def flops_per_token(model: nn.Module, length: int = LENGTH) -> int:
    """Floating-point operations that training one token needs, forward and backward (arXiv 2204.02311, appendix B).

    6 N + 12 L d S, with N parameters in matrix products (all but those of embeddings that are only looked up), L layers
    of width d and rows of S tokens. What is left out (vocabulary logits without a label) or done twice does not change
    it: it says what the model needs, not what a program does.
    """
    looked_up = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    looked_up -= {id(head.weight)} if head is not None else set()
    products = sum(each.numel() for each in model.parameters() if each.dim() > 1 and id(each) not in looked_up)
    config: Any = model.config
    return 6 * products + 12 * int(config.num_hidden_layers) * int(config.hidden_size) * length


def options(batch: int, precision: str) -> dict[str, Any]:
    """``TrainingArguments`` that every contender gets: optimizer and precision."""
    return {
        "per_device_train_batch_size": batch,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "bf16": precision == "bf16",
        "save_strategy": "no",
        "report_to": "none",
    }


def stage_trainer(
    model: nn.Module,
    rows: dict[str, np.ndarray],
    methods: Sequence[Method],
    train: dict[str, Any],
) -> Contender:
    """Our trainer, set up as the learner does it for each stage; the methods begin the domain each time."""
    words = tokenizer()
    objective = make_objective(None, model, words)

    def make(clock: Clock, steps: int) -> Trainer:
        args = training_arguments(train, Path(tempfile.gettempdir()) / "everlearn-benchmark", seed=0, steps=steps)
        source = PackedBlocks(rows, seed=0, fingerprint="benchmark")
        stage = Stage(
            index=1,
            domain="benchmark",
            earlier=(),
            model=model,
            tokenizer=words,
            objective=objective,
            source=source,
            general=source.fresh(1),
            batch_size=args.per_device_train_batch_size,
            seed=0,
            steps=steps,
        )
        protection = Protection(methods, stage)
        protection.begin()
        loader = BlockLoader(source, objective, args.per_device_train_batch_size, steps)
        return StageTrainer(protection=protection, loader=loader, args=args, callbacks=[clock])

    return make


def stock_trainer(model: nn.Module, rows: dict[str, np.ndarray], train: dict[str, Any], device: str) -> Contender:
    """transformers' Trainer as its documentation sets it up."""
    words = tokenizer()
    masked = isinstance(model, RobertaForMaskedLM)
    data = datasets.Dataset.from_dict({"input_ids": rows["input_ids"]})

    def make(clock: Clock, steps: int) -> Trainer:
        args = TrainingArguments(
            output_dir=str(Path(tempfile.gettempdir()) / "everlearn-benchmark"),
            max_steps=steps,
            disable_tqdm=True,
            use_cpu=device == "cpu",
            **train,
        )
        collator = DataCollatorForLanguageModeling(words, mlm=masked, mlm_probability=0.15)
        trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator, callbacks=[clock])
        trainer.remove_callback(PrinterCallback)
        return trainer

    return make


def interleave(contenders: dict[str, Contender], *, segments: int, steps: int, warmup: int) -> dict[str, Timing]:
    """Train every contender in turns, after one turn of warming up that is not counted."""
    timings = {name: Timing() for name in contenders}
    for turn in range(segments + 1):
        for name, make in contenders.items():
            # Ended each time: its hooks must not slow the next contender.
            _end(make(Clock(timings[name], warmup), warmup + steps if turn else warmup))
    return timings


STEPS = "the steps"
"""What the profiler calls the training itself, between what is measured before and after it."""


@dataclass(frozen=True)
class Peaks:
    """The most bytes of tensors that lived at once, over what was there before.

    Attributes:
        total: at any time.
        steps: in the steps, with all that was held meanwhile; as `total` where there are none, and on an accelerator,
            which keeps no record of when.
    """

    total: int
    steps: int


def peak_memory(make: Contender, device: str, steps: int = 2) -> Peaks:
    """:func:`peaks` of a contender that is made and trained."""
    return peaks(lambda: _end(make(Clock(Timing(), steps), steps)), device)


def peaks(work: Callable[[], object], device: str) -> Peaks:
    """Of some work.

    On the CPU the profiler tells of every allocation; memory of the libraries' own (matrix kernels) is not in it.
    """
    gc.collect()  # what is freed in between would be taken off
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        peak = torch.cuda.max_memory_allocated() - before
        return Peaks(peak, peak)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events: Any = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = np.cumsum([size for _, size in moves], dtype=np.int64)
    times = np.array([at for at, _ in moves], np.int64)
    spans = ((times >= event.start_ns()) & (times <= event.end_ns()) for event in events if event.name() == STEPS)
    return Peaks(int(max(held, default=0)), int(max(held[next(spans, slice(None))], default=0)))


def _end(trainer: Trainer) -> None:
    with torch.profiler.record_function(STEPS):
        trainer.train()
    if isinstance(trainer, StageTrainer):
        trainer.free_optimizer()
        with as_its_class_computes(trainer.protection.stage.model):  # measured in float32, as after every domain
            trainer.protection.end()


def beside_first(summaries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each summary with its times (and memory, where it was measured) as multiples of the first's."""
    first = next(iter(summaries.values()))
    for summary in summaries.values():
        for number in ("seconds_per_step", "processor_seconds_per_step", "peak_bytes"):
            if number in summary:
                summary[f"times_{number}"] = summary[number] / first[number]
    return summaries


def overhead_table(summaries: dict[str, dict[str, Any]]) -> str:
    """Markdown: seconds a step, their multiples of the first row's in wall and processor time, peak memory and its;
    where a row declares what it holds (`declared_bytes`), that beside how far its steps' peak is over the first's."""
    heads = ["", "seconds a step", "times the first", "in processor time", "peak memory, MB", "times the first"]
    first = next(iter(summaries.values()))
    declared = any("declared_bytes" in summary for summary in summaries.values())
    heads += ["steps over the first's, MB", "declared, MB"] * declared
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    for name, summary in summaries.items():
        peak = summary.get("peak_bytes")
        memory = ["–", "–"] if peak is None else [f"{peak / 1e6:.1f}", f"{summary['times_peak_bytes']:.3f}"]
        if declared:
            over = summary["steps_bytes"] - first["steps_bytes"] if "declared_bytes" in summary else None
            memory += ["–" if size is None else f"{size / 1e6:.1f}" for size in (over, summary.get("declared_bytes"))]
        times = (summary[f"times_{clock}seconds_per_step"] for clock in ("", "processor_"))
        numbers = [f"{summary['seconds_per_step']:.3f}", *(f"{value:.3f}" for value in times), *memory]
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def environment(device: str) -> dict[str, Any]:
    """Versions and machine, for the JSON."""
    names = ("everlearn", "torch", "transformers", "accelerate", "datasets", "numpy")
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return {
        "versions": {name: metadata.version(name) for name in names} | {"python": platform.python_version()},
        "device": torch.cuda.get_device_name() if device == "cuda" else machine,
        "threads": torch.get_num_threads(),
        "bf16_in_hardware": device == "cuda" or bf16,
    }


def header(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every result says about itself; sets the number of threads first."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    report = environment(arguments.device)
    if not report["bf16_in_hardware"]:
        print("This processor has no bf16 arithmetic (AVX512-BF16, AMX): bf16 is emulated and slower than float32.")
    if "batch" in arguments:
        report |= {"batch": arguments.batch, "length": LENGTH}
    return report | {
        "segments": arguments.segments,
        "steps_per_segment": arguments.steps,
        "load_average_at_start": os.getloadavg()[0],
    }


def parser(description: str | None, batch: bool = True) -> argparse.ArgumentParser:
    """The options of what is timed in turns; `batch`: whether it learns :func:`packed_rows`, and not a recipe's."""
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--output", type=Path, help="write the result here as JSON")
    if batch:
        out.add_argument("--batch", type=int, default=32, help="rows per step")
    out.add_argument("--segments", type=int, default=6, help="timed segments of each contender")
    out.add_argument("--steps", type=int, default=2, help="timed steps of a segment")
    out.add_argument("--warmup", type=int, default=1, help="steps of a segment before the clock starts")
    out.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    out.add_argument("--threads", type=int, help="threads on the CPU; default as torch chooses")
    return out


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write the JSON where it was asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result | {"load_average_at_end": os.getloadavg()[0]})
