"""Teach an instruct model chats and plain text through LoRA, with a penalty and a stop, and export it for other tools.

    python benchmarks/chat_adapter.py MODEL DATA [--output docs/results/chat-adapter.json] [--work FOLDER]
    python benchmarks/chat_adapter.py --page docs/results/chat-adapter.json

The recipe is chat-adapter.yaml. It runs three times: as it stands, with LoRA alone (no penalty and no stop), and with a
stop that goes back and goes on at half the rate instead of ending the domain. The first run is exported in bf16, as an
adapter and merged, and both are loaded by transformers and PEFT in a process that does not import everlearn. A killed
run is resumed by the next call.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from everlearn import files

HERE = Path(__file__).parent
RECIPE = HERE / "chat-adapter.yaml"
PROBLEMS = "eval/gsm8k_test.jsonl.gz"
WAYS: dict[str, list[str]] = {
    "LoRA, MAS, stop": [],
    "LoRA": ["method=[{name: lora, r: 16, target_modules: all-linear}]", "stop=null"],
    "LoRA, MAS, stop that lowers the rate": ["stop.then=lower"],
}
LOADED = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, adapter, merged = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(merged)
chat = [{"role": "user", "content": "What is 3 times 4?"}]
ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
models = {
    "merged": AutoModelForCausalLM.from_pretrained(merged, dtype="auto"),
    "adapter": PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter),
}
said = {"everlearn_imported": "everlearn" in sys.modules}
for name, model in models.items():
    model.eval()
    with torch.no_grad():
        logits = model(**ids).logits[0, -1].float()
        written = model.generate(**ids, max_new_tokens=40, do_sample=False)[0, ids["input_ids"].shape[1] :]
    weights = model.state_dict() if name == "merged" else {k: v for k, v in model.state_dict().items() if "lora_" in k}
    said[name] = {
        "formats": sorted({str(weight.dtype) for weight in weights.values()}),
        "answer": tokenizer.decode(written),
        "probabilities": logits.softmax(-1).topk(5).values.tolist(),
    }
print(json.dumps(said))
"""
"""What a user of the exports runs. It loads them without everlearn."""


def write_chats(data: Path, place: Path) -> None:
    """Write word problems and their solutions as chats of two messages."""
    with gzip.open(data / PROBLEMS, "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file]
    chats = (
        {
            "messages": [
                {"role": "user", "content": problem["question"]},
                {"role": "assistant", "content": problem["answer"]},
            ]
        }
        for problem in problems
    )
    files.write_text(place, "".join(f"{json.dumps(chat)}\n" for chat in chats))


def overrides(recipe: Path, model: Path, data: Path, chats: Path) -> list[str]:
    """Return the places that a recipe leaves open: those of the model, the chats, German news and Wikipedia."""
    raw = yaml.safe_load(recipe.read_text())
    german, general = raw["domains"][1], raw["general"]
    return [
        f"model.path={model}",
        f"domains.0.path={chats}",
        *(f"domains.1.{part}={data / german[part]}" for part in ("path", "validation")),
        *(f"general.{part}={data / general[part]}" for part in ("path", "validation")),
    ]


def everlearn(*arguments: str) -> None:
    """Run a command of everlearn, and end where it fails."""
    subprocess.run([sys.executable, "-m", "everlearn", *arguments], check=True)


def run(recipe: Path, folder: Path, changes: list[str]) -> dict[str, Any]:
    """Run a recipe, or resume it; return the run's results."""
    if not (folder / "results.json").is_file():
        if (folder / "recipe.yaml").is_file():
            everlearn("resume", str(folder), "--quiet")
        else:
            everlearn("run", str(recipe), *changes, f"run.folder={folder}", "--quiet")
    return files.read_json(folder / "results.json")


def load_elsewhere(model: Path, folder: Path, work: Path) -> dict[str, Any]:
    """Export a run in bf16, as an adapter and merged, and load both without everlearn."""
    places = [work / "adapter", work / "merged"]
    for place, kind in zip(places, (["--adapter"], []), strict=True):
        if not place.is_dir():
            everlearn("export", str(folder), str(place), "--dtype", "bfloat16", *kind)
    call = [sys.executable, "-c", LOADED, str(model), *map(str, places)]
    outputs = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    outputs["bytes"] = {
        place.name: sum(file.stat().st_size for file in place.glob("*.safetensors")) for place in places
    }
    return outputs


def page(result: dict[str, Any]) -> str:
    """The tables of docs/results/chat-adapter.md."""
    lines = [
        "| run | domain | steps kept | learnt ↑ | forgotten ↓ | better than the base at the end ↑ |",
        "|---|---|---|---|---|---|",
    ]
    for row, results in result["runs"].items():
        numbers = results["summary"]["bits_per_byte"]
        for stage in results["cost"]["stages"]:
            steps = f"{stage['steps']} of {stage.get('planned_steps') or stage['steps']}"
            own = [as_text(numbers[key].get(stage["domain"])) for key in ("learnt", "forgotten", "gained")]
            lines.append(f"| {' | '.join([row, stage['domain'], steps, *own])} |")
    lines += ["", "| run | general drift ↓ | still chats: before | after the last domain |", "|---|---|---|---|"]
    for row, results in result["runs"].items():
        drift = as_text(results["summary"]["bits_per_byte"]["general_drift"]["general"])
        before, *_, after = (value for _, task, value, *_ in results["matrices"]["chats"]["cells"] if task == "chat")
        lines.append(f"| {row} | {drift} | {before:.0%} | {after:.0%} |")
    return "\n".join(lines)


def as_text(estimate: dict[str, float] | None) -> str:
    if not estimate:
        return ""
    return f"{estimate['value']:+.3f} ({estimate['low']:+.3f} to {estimate['high']:+.3f})"


def arguments(about: str, name: str, **numbers: int) -> argparse.Namespace:
    """Read the command line: MODEL and DATA, or `--page` with a result.

    Args:
        about: what the script does.
        name: name of its result in docs/results.
        numbers: further options that are whole numbers, with their defaults.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--page", type=Path, help="print the tables of a result")
    parser.add_argument("--output", type=Path, default=Path(f"docs/results/{name}.json"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / f"everlearn-{name}")
    for option, default in numbers.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    if not options.page and not options.data:
        parser.error("MODEL and DATA are required")
    return options


def main() -> None:
    options = arguments(__doc__, "chat-adapter")
    if options.page:
        print(page(files.read_json(options.page)))
        return
    model, data = options.model.resolve(), options.data.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    chats = options.work / "chats.jsonl"
    write_chats(data, chats)
    changes = overrides(RECIPE, model, data, chats)
    runs = {
        row: run(RECIPE, options.work / f"run-{number}", [*changes, *more])
        for number, (row, more) in enumerate(WAYS.items())
    }
    result = {
        "model": model.name,
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "everlearn")},
        "runs": runs,
        "loaded": load_elsewhere(model, options.work / "run-0", options.work),
    }
    files.write_json(options.output, result)


if __name__ == "__main__":
    main()
