"""What a stage loses when its weights are kept in bfloat16 (`run.stage_dtype`).

    python benchmarks/stage_dtype.py RUN STAGE --output docs/results/stage-dtype.json

RUN is the folder of a run with float32 stages, STAGE the number of one, with its weights. Its model is scored on the
run's held-out text with the weights as they are and rounded to bfloat16. Beside the scores stand the share of the
weights that the stages until then have moved and the rounding puts back to their value in the base model, and the norm
of the rounding errors as a share of the norm of the whole change since the base model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import harness
from everlearn import ContinualLearner, files
from everlearn.evaluation import METRICS
from everlearn.model.number_format import recast
from everlearn.predictors import Checkpoint


def measure(folder: Path, index: int) -> dict[str, Any]:
    """Return the scores of a stage and what the rounding does to its weights."""
    learner = ContinualLearner.open(folder)
    scorer, domain = learner.scorer(), learner.recipe.domains[index - 1].name
    how, score = scorer.conditions(index), METRICS["bits_per_byte"].score
    bits: dict[str, dict[str, float]] = {}
    weights = [_weights(learner.model_after(0))]
    with tempfile.TemporaryDirectory() as scratch:
        rounded = Path(scratch) / "stage"
        shutil.copytree(learner.folder.stage(index, domain), rounded)
        recast(rounded, "bfloat16")
        for name, place in (("float32", learner.folder.stage(index, domain)), ("bfloat16", rounded)):
            model = learner.load(place).eval()
            texts = map(scorer.held_out, scorer.names())
            bits[name] = {text.name: score(text.measure(Checkpoint(model, how.objective), how)) for text in texts}
            weights.append(_weights(model))
    base, kept, cut = weights
    moved = returned = 0
    error = change = 0.0
    for name, value in kept.items():
        moved += int((value != base[name]).sum())
        returned += int(((value != base[name]) & (cut[name] == base[name])).sum())
        error += float((cut[name] - value).double().square().sum())
        change += float((value - base[name]).double().square().sum())
    train = learner.recipe.train_of(domain)
    return {
        "model": str(learner.recipe.model.path).rpartition("/")[2],
        "learning_rate": train["learning_rate"],
        "steps": train["max_steps"],
        "domains": [each.name for each in learner.recipe.domains[:index]],
        "bits_per_byte": bits,
        "returned_to_the_base": returned / moved,
        "error_of_the_change": (error / change) ** 0.5,
    }


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by name, tied ones once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def main() -> None:
    """Measure a stage and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("stage", type=int)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    files.write_json(
        arguments.output, {**measure(arguments.run, arguments.stage), "environment": harness.environment("cpu")}
    )


if __name__ == "__main__":
    main()
