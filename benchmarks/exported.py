"""What an export is without everlearn: used by plain peft and transformers, and searched for what must not be there.

    python benchmarks/exported.py --data FOLDER --plain PYTHON [--output docs/results/export.md]

FOLDER holds ``domains/NAME/{train,validation}.jsonl.gz``; PYTHON is an interpreter with transformers and peft and
without everlearn (python -m venv; pip install torch transformers peft). Two short runs on real text, LoRA with replay
and DAS with replay, are exported; the other interpreter loads them and says what they say; every byte is searched for
the training text and for paths of this machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from everlearn import files
from everlearn.commands.export import Export, export
from everlearn.config import recipe as recipes
from everlearn.config.recipe import Recipe
from everlearn.data.documents import read_documents
from everlearn.learner import ContinualLearner
from everlearn.model.loading import quiet
from everlearn.run.progress import Terminal
from everlearn.wording import size

BASE = Path(__file__).parent / "bases" / "english"
DOMAINS = ("yelp_restaurants", "acl_papers")
WORDS = 5
"""Words in a row that count as training text."""
TEXT = "The food at this <mask> was really good."

ELSEWHERE = """
import importlib.util, json, sys
assert importlib.util.find_spec("everlearn") is None
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
folder, base, dtype, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMaskedLM.from_pretrained(base or folder, dtype=dtype)
if base:
    model = PeftModel.from_pretrained(model, folder)
model = model.eval()
text = sys.stdin.read()
with torch.no_grad():
    logits = model(**tokenizer(text, return_tensors="pt")).logits.float()
save_file({"logits": logits.contiguous()}, out)
plain = model.merge_and_unload() if base else model
filled = pipeline("fill-mask", model=plain, tokenizer=tokenizer)(text)
import peft, transformers
print(json.dumps({"filled": [each["token_str"].strip() for each in filled], "versions":
    {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}}))
"""


def recipe(name: str, method: Any, data: Path, runs: Path) -> Recipe:
    """Two domains of real text, learnt briefly."""
    domains = [
        {
            "name": domain,
            "path": str(data / "domains" / domain / "train.jsonl.gz"),
            "validation": str(data / "domains" / domain / "validation.jsonl.gz"),
            "max_documents": 500,
        }
        for domain in DOMAINS
    ]
    return recipes.parse(
        {
            "model": str(BASE),
            "domains": domains,
            "method": method,
            "data": {"block_size": 64, "cache": str(runs / "cache")},
            "train": {"max_steps": 15, "per_device_train_batch_size": 8, "learning_rate": 1e-3},
            "evaluation": {"blocks": 32},
            "run": {"name": name, "folder": str(runs / name)},
        }
    )


def training_text(run: Recipe) -> set[tuple[str, ...]]:
    """Every stretch of so many words of what the run trained on."""
    seen: set[tuple[str, ...]] = set()
    for domain in run.domains:
        for document, _ in read_documents(domain):
            seen.update(stretches(words_of(document.text)))
    return seen


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())


def stretches(words: list[str]) -> Iterator[tuple[str, ...]]:
    """Each stretch of :data:`WORDS` words, but for those that say nothing (numbers and letters alone)."""
    for at in range(len(words) - WORDS + 1):
        stretch = tuple(words[at : at + WORDS])
        if sum(len(word) > 2 and not word.isdigit() for word in stretch) >= WORDS - 1:
            yield stretch


def readable(path: Path) -> Iterator[str]:
    """Whatever of a file can be read as text: its bytes in one-byte and two-byte letters."""
    content = path.read_bytes()
    for run in re.findall(rb"[\x09\x0a\x0d\x20-\x7e]{12,}", content):
        yield run.decode("ascii")
    for run in re.findall(rb"(?:[\x20-\x7e]\x00){12,}", content):
        yield run.decode("utf-16-le")


def rows(path: Path) -> Iterator[list[int]]:
    """Every row of whole numbers in a file: of tensors, and lists in JSON."""
    if path.suffix == ".safetensors":
        for tensor in files.load_tensors(path).values():
            if not tensor.is_floating_point() and tensor.dim():
                yield from tensor.reshape(-1, tensor.shape[-1]).tolist()
    elif path.suffix == ".json":
        pending: list[Any] = [json.loads(path.read_text(encoding="utf-8"))]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                pending += value.values()
            elif isinstance(value, list):
                if value and all(type(each) is int for each in value):
                    yield value
                else:
                    pending += value


def search(folder: Path, text: set[tuple[str, ...]], paths: Iterable[str]) -> dict[str, int]:
    """What a folder holds of the training text and of this machine's paths."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    counts = {"files": 0, "bytes": 0, "rows of whole numbers": 0, "stretches of training text": 0, "paths": 0}
    vocabulary = len(tokenizer)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        counts["files"] += 1
        counts["bytes"] += path.stat().st_size
        content = path.read_bytes()
        counts["paths"] += sum(
            content.count(place.encode()) + content.count(place.encode("utf-16-le")) for place in paths
        )
        seen = {each for part in readable(path) for each in stretches(words_of(part)) if each in text}
        for row in rows(path):
            counts["rows of whole numbers"] += 1
            decoded = tokenizer.decode([each for each in row if 0 <= each < vocabulary])
            seen.update(each for each in stretches(words_of(decoded)) if each in text)
        counts["stretches of training text"] += len(seen)
    return counts


def elsewhere(python: str, exported: Export, base: str, dtype: str, runs: Path) -> tuple[torch.Tensor, dict[str, Any]]:
    """What the other interpreter makes of an export."""
    out = runs / "logits.safetensors"
    done = subprocess.run(
        [python, "-I", "-c", ELSEWHERE, str(exported.folder), base, dtype, str(out)],
        input=TEXT,
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(runs)},
    )
    if done.returncode:
        sys.exit(done.stderr)
    report = json.loads(done.stdout.strip().splitlines()[-1])
    return files.load_tensors(out)["logits"], report


def main() -> None:
    """Run, export, use, search; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--plain", required=True, help="an interpreter without everlearn")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    quiet()
    lora = [{"name": "inc_lora", "r": 8, "target_modules": "attention"}, {"name": "replay", "share": 0.2}]
    full = [{"name": "das", "samples": 32}, {"name": "replay", "share": 0.2}]
    with tempfile.TemporaryDirectory() as temporary:
        runs, used, searched, versions = Path(temporary).resolve(), [], [], {}
        for name, method in (("lora", lora), ("das", full)):
            learner = ContinualLearner(recipe(name, method, arguments.data.resolve(), runs), reporter=Terminal())
            learner.run()
            text = training_text(learner.recipe)
            paths = {str(runs), str(arguments.data.resolve()), str(BASE.resolve()), str(Path.home()), "/tmp/"}
            forms = [("whole model", False, False), ("with its memory", False, True)]
            forms += [("adapter", True, False)] if name == "lora" else []
            for form, adapter, memory in forms:
                place = runs / f"{name}-{form.replace(' ', '-')}"
                exported = export(learner.folder.path, place, adapter=adapter, with_memory=memory, license="apache-2.0")
                searched.append((f"{name}, {form}", search(exported.folder, text, paths)))
                if memory:
                    continue
                tokens = AutoTokenizer.from_pretrained(BASE)(TEXT, return_tensors="pt")
                with torch.no_grad():
                    ours = learner.model_after(len(DOMAINS)).eval()(**tokens).logits
                    base = learner.model_after(0).eval()(**tokens).logits
                # The base model is stored in bfloat16, as which transformers loads it unless it is told otherwise.
                for dtype in ("float32", "auto") if adapter else ("auto",):
                    logits, report = elsewhere(
                        arguments.plain, exported, str(BASE.resolve()) if adapter else "", dtype, runs
                    )
                    versions, far = report["versions"], float((logits - ours).abs().max())
                    as_read = f", base read as {'stored (bfloat16)' if dtype == 'auto' else dtype}" if adapter else ""
                    used.append((f"{name}, {form}{as_read}", far, float((base - ours).abs().max()), report["filled"]))
            searched.append((f"{name}, the stage's own folder", search(_last(learner), text, paths)))
        page = _page(used, searched, versions)
    print(page)
    if arguments.output is not None:
        files.write_text(arguments.output, page)
    clean = [counts for name, counts in searched if name.endswith(("whole model", "adapter"))]
    if any(counts["stretches of training text"] or counts["paths"] for counts in clean):
        sys.exit("Something is in an export that must not be.")


def _last(learner: ContinualLearner) -> Path:
    return learner.folder.stage(len(DOMAINS), DOMAINS[-1])


def _page(used: list[Any], searched: list[Any], versions: dict[str, str]) -> str:
    lines = [
        "# Do exports work without everlearn, and do they hold training text?",
        "",
        "Two short runs on real text, one with LoRA and replay, one with DAS and replay, were exported after their "
        "second domain: the small encoder for English, restaurant reviews, then papers, 15 steps each. "
        "`benchmarks/exported.py` writes this page.",
        "",
        "## Used without everlearn",
        "",
        "By an interpreter in which everlearn is not installed ("
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f"): `AutoModelForMaskedLM`, `PeftModel` and the fill-mask pipeline, on “{TEXT.replace('<mask>', '▁')}”.",
        "",
        "| export | largest difference of a logit from the run's stage | the base model's | fills in |",
        "|---|---:|---:|---|",
        *(f"| {name} | {far:.2g} | {base:.2g} | {', '.join(filled)} |" for name, far, base, filled in used),
        "",
        "The adapter adds both domains at once where the stage added one after the other, so it differs by rounding; "
        'with a base in bfloat16, by the rounding of bfloat16. The card and the docs say `dtype="float32"`.',
        "",
        "## Searched",
        "",
        f"Every byte of every file is searched for {WORDS} words in a row of the training text (as letters of one or "
        "two bytes, and decoded from every row of integers in tensors and JSON), and for paths of the machine: the "
        "runs' folder, the data, the base model, the home folder, /tmp/. The stage's own folder shows that the search "
        "finds what is there. An export with its memory holds text, because replay's memory does.",
        "",
        "| | files | size | rows of whole numbers | stretches of training text | paths |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, contents in searched:
        counts = [f"{contents['files']}", size(contents["bytes"])]
        counts += [f"{contents[key]:,}" for key in ("rows of whole numbers", "stretches of training text", "paths")]
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
