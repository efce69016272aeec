"""What a step is predicted to lose, by several forms of the Fisher information, beside what it does lose.

    python benchmarks/prediction.py DATA [--steps 1,4,8,16] [--rows 96] [--few 32] [--probe 96]

Plain AdamW on Yelp reviews from `benchmarks/bases/english-decoder`, read back on Wikipedia. DATA is the folder of the
suite `six-domains`. All forms are of F at the weights of the base, labels drawn by the model, and in bits per byte:

    exact       ½ Var of the logits' derivative along Δ, the mean over labels: a forward-mode pass over the probe
    directions  ½ ‖G Δ‖², as the method `budget` has it; 8 are made of the 32 by adding four at a time
    Kronecker   K-FAC's factors of linear layers, a diagonal for the rest
    diagonal    ½ Σ F Δ²

Written to `docs/results/budget-prediction.md` and `.json`. About a minute of processor time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from everlearn import files
from everlearn.data.blocks import Block
from everlearn.data.packing import blocks_of
from everlearn.importance import kronecker_fisher, label_directions, label_fisher, labels_of_the_model
from everlearn.methods.penalties.drift_prediction import Ellipsoid, Known
from everlearn.model.objectives import Objective, make_objective

HERE = Path(__file__).parent
BASE = HERE / "bases/english-decoder"
PAGE = HERE.parent / "docs/results/budget-prediction.md"
GENERAL, DOMAIN = "D0/wikipedia/validation.jsonl.gz", "domains/yelp_restaurants/train.jsonl.gz"
LENGTH, BATCH, RATE, EXACT = 128, 16, 5e-4, 2
"""EXACT batches of the probe are differentiated forward."""
FORMS = ("exact", "32 directions", "8 directions", "Kronecker", "diagonal")
Batch = dict[str, Tensor]


def rows_of(path: Path, tokenizer: PreTrainedTokenizerBase, count: int) -> list[Block]:
    """Rows of the text's beginning, mixed."""
    texts, missing = list[str](), 6 * LENGTH * count  # characters: a token has fewer than six
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        while missing > 0 and (line := lines.readline()):
            texts.append(json.loads(line)["text"])
            missing -= len(texts[-1])
    blocks = blocks_of(texts, tokenizer, "decoder", LENGTH)
    if len(blocks) < count:
        raise SystemExit(f"{path} has {len(blocks)} rows, and {count} are asked for.")
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))[:count].tolist()
    return [blocks[index] for index in order]


def batches_of(rows: Sequence[Block], objective: Objective) -> list[Batch]:
    """Collated, BATCH at a time."""
    return [objective.collate(rows[at : at + BATCH], range(at, at + BATCH)) for at in range(0, len(rows), BATCH)]


def labels_of(text: Sequence[Batch], objective: Objective) -> int:
    """How many these batches have."""
    return sum(int(objective.items(batch).sum()) for batch in text)


@torch.no_grad()
def nats(model: nn.Module, text: Sequence[Batch], objective: Objective) -> Tensor:
    """Of each row, float64."""
    return torch.cat([objective.forward(model, batch).losses.double().sum(1) for batch in text])


def exact(model: nn.Module, text: Sequence[Batch], start: Mapping[str, Tensor], step: Mapping[str, Tensor]) -> float:
    """½ E Var_{y ~ p}(∂ logit_y along Δ), nats per label: ½ Δᵀ F Δ with neither draws nor F."""
    variances = []
    for batch in text:

        def logits(weights: Mapping[str, Tensor], ids: Tensor = batch["input_ids"]) -> Any:
            return functional_call(model, dict(weights), (ids,)).logits[:, :-1]

        with torch.no_grad():
            here, slopes = jvp(logits, (dict(start),), (dict(step),))[:2]
        p = here.softmax(-1)
        variances.append(((p * slopes.square()).sum(-1) - (p * slopes).sum(-1).square()).flatten())
    return float(torch.cat(variances).mean()) / 2


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train, and at some steps predict and measure."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager").eval()
    objective = make_objective("causal", model, tokenizer)
    general = rows_of(args.data / GENERAL, tokenizer, args.probe + args.rows)
    probe, text = (batches_of(rows, objective) for rows in (general[: args.probe], general[args.probe :]))
    labels = labels_of(probe, objective)
    ids = [each for batch in probe for each in batch["labels"].flatten().tolist() if each >= 0]
    bits = (
        math.log(2) * len(str(tokenizer.decode(ids, skip_special_tokens=True)).encode()) / labels
    )  # nats a label to bpb

    thirty_two = label_directions(model, text, objective, 0, rank=32, rows=args.rows)
    eight = {name: g.float().unflatten(0, (8, 4)).sum(1).bfloat16() for name, g in thirty_two.items()}
    few = text[: args.few // BATCH]
    diagonal = label_fisher(model, few, objective, 0)
    drawn = labels_of_the_model(model, few, objective, 0)
    factors = kronecker_fisher(model, drawn, lambda m, batch: objective.forward(m, batch).losses.sum(1))
    inside = {}
    for form, directions in (("32 directions", thirty_two), ("8 directions", eight)):
        known = Known()
        known.add("general", diagonal, directions, model)
        inside[form] = Ellipsoid("budget", known, model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    before = nats(model, probe, objective)

    steps, lines = [int(step) for step in args.steps.split(",")], []
    domain = batches_of(rows_of(args.data / DOMAIN, tokenizer, steps[-1] * BATCH), objective)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps[-1])
    for number, batch in enumerate(domain, 1):
        objective.forward(model, batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        fall.step()
        if number in steps:
            lost = (nats(model, probe, objective) - before) * len(before) / labels
            step = {name: p.detach() - start[name] for name, p in model.named_parameters()}
            with torch.no_grad():
                forms = {form: each.predicted() for form, each in inside.items()}
                forms["diagonal"] = inside["8 directions"].diagonal()
                forms["Kronecker"] = float(factors.quadratic(step)) / 2 * args.few / labels_of(few, objective)
            forms["exact"] = exact(model, probe[:EXACT], start, step)
            line = {"measured": float(lost.mean()), "error": float(lost.std()) / len(lost) ** 0.5} | forms
            lines.append({"step": number} | {key: value / bits for key, value in line.items()})
            print(lines[-1], flush=True)
    return lines


def page(lines: Sequence[Mapping[str, float]], args: argparse.Namespace) -> str:
    """The table."""
    rows = [
        f"| {line['step']} | {line['measured']:.4f} ± {line['error']:.4f} | "
        + " | ".join(f"{line[form]:.2g}" if line[form] < 0.001 else f"{line[form]:.4f}" for form in FORMS)
        for line in lines
    ]
    ratios = [[line[form] / line["measured"] for line in lines] for form in FORMS]
    shares = [f"{min(each):.2g} to {max(each):.2g}" for each in ratios]
    return f"""# Predicted and measured loss of a step

Plain AdamW on Yelp reviews, {BATCH} rows of {LENGTH} tokens a step, learning rate {RATE:g} from the first step and
falling linearly, from `benchmarks/bases/english-decoder`. The loss is that of Wikipedia in bits per byte, on
{args.probe} rows (± is a standard error). F is measured on {args.rows} other rows, on {args.few} of them for
Kronecker factors and diagonal; *exact* is ½ Δᵀ F Δ without sampling, on the probe's first {EXACT * BATCH} rows. One
seed. Written by `python benchmarks/prediction.py DATA --steps {args.steps}`; [json](budget-prediction.json).

| step | measured | {" | ".join(FORMS)} |
|---:|---:|{"---:|" * len(FORMS)}
{chr(10).join(f"{row} |" for row in rows)}
| of what is measured | | {" | ".join(shares)} |
"""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", default="1,4,8,16")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--few", type=int, default=32)
    parser.add_argument("--probe", type=int, default=96)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    lines = measure(args)
    files.write_json(args.page.with_suffix(".json"), {"steps": lines})
    files.write_text(args.page, page(lines, args))


if __name__ == "__main__":
    main()
