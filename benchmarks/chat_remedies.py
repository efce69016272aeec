"""Teach an instruct model chats and then plain text, with remedies that need none of the chats that it was tuned on.

    python benchmarks/chat_remedies.py MODEL DATA [--output docs/results/chat-remedies.json] [--work FOLDER]
    python benchmarks/chat_remedies.py --page docs/results/chat-remedies.json

The recipe is chat-remedies.yaml; ROWS says what each run changes. One seed, and nothing is chosen: 3e-4 is a rate at
which plain training should forget, and plain training at lower rates shows what a lower rate does alone. Every row has
the same steps; what self-distillation and the model's own chats generate comes on top. A killed run is resumed by the
next call. In the end all last checkpoints are asked again, with room for longer answers; that was added after the
first results.
"""

from __future__ import annotations

import gzip
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chat_adapter import arguments, as_text, everlearn, overrides, run, write_chats
from everlearn import files
from everlearn.config.recipe import load, save

RECIPE = Path(__file__).parent / "chat-remedies.yaml"
ROOM = 160
"""Tokens of an answer in a second evaluation of the last checkpoints."""
QUESTIONS, ASKED = "eval/arc_easy.jsonl.gz", 96
_BUDGET = {"general": 0.02, "earlier": 0.02, "samples": 16, "rank": 2, "probe": 16, "checks": 4}
_DISTILLED = {"name": "sdft", "max_new_tokens": 96}
ROWS: dict[str, list[str]] = {
    "plain training at 3e-5": ["train.learning_rate=3e-5"],
    "plain training at 1e-4": ["train.learning_rate=1e-4"],
    "plain training at 3e-4": [],
    "chats of its own": ["method=replay_generated_chats"],
    "self-distillation": [f"method={json.dumps([_DISTILLED])}"],
    "budget": [f"method={json.dumps([{'name': 'budget', **_BUDGET}])}"],
}
"""At 3e-4 where nothing else is said."""


def write_questions(data: Path, place: Path) -> None:
    """Write the first questions of ARC-easy, without their choices."""
    with gzip.open(data / QUESTIONS, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["query"].removeprefix("Question: ") for line in file]
    files.write_text(place, "".join(f"{json.dumps({'text': text})}\n" for text in texts[:ASKED]))


def with_room(model: Path, work: Path, changes: list[str]) -> dict[str, float]:
    """Return the share of questions answered as a chat with room for ROOM tokens, by the base and each run's end."""
    recipe, scored = work / "with-room.yaml", work / "with-room"
    changed = load(RECIPE, [*changes, f"evaluation.chat.max_new_tokens={ROOM}", "evaluation.blocks=1"])
    save(changed, recipe)
    ends = [next((work / f"run-{number}").glob("stage-02-*")) for number in range(len(ROWS))]
    models = [f"{row}={place}" for row, place in zip(["base", *ROWS], [model, *ends], strict=True)]
    if not scored.is_dir():
        everlearn("evaluate", *models, "--on", str(recipe), "--output", str(scored))
    cells = files.read_json(scored / "results.json")["matrices"]["chats"]["cells"]
    return {row: value for row, task, value, *_ in cells if task == "chat"}


def page(result: dict[str, Any]) -> str:
    """The tables of docs/results/chat-remedies.md."""
    lines = [
        "| run | word problems: learnt ↑ | forgotten ↓ | German: learnt ↑ | general drift ↓ |",
        "|---|---|---|---|---|",
    ]
    for row, results in result["runs"].items():
        numbers = results["summary"]["bits_per_byte"]
        columns = [("learnt", "word_problems"), ("forgotten", "word_problems"), ("learnt", "german")]
        values = [numbers[key].get(text) for key, text in [*columns, ("general_drift", "general")]]
        lines.append(f"| {' | '.join([row, *map(as_text, values)])} |")
    lines += ["", f"| run | still chats: before | after the chats | after the plain text | with {ROOM} tokens |"]
    lines += ["|---|---|---|---|---|"]
    for row, results in result["runs"].items():
        values = [value for _, task, value, *_ in results["matrices"]["chats"]["cells"] if task == "chat"]
        lines.append(f"| {row} | {' | '.join(f'{value:.0%}' for value in [*values, result['with_room'][row]])} |")
    return "\n".join(lines)


def main() -> None:
    options = arguments(__doc__, "chat-remedies")
    if options.page:
        print(page(files.read_json(options.page)))
        return
    model, data = options.model.resolve(), options.data.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    chats, questions = options.work / "chats.jsonl", options.work / "questions.jsonl"
    write_chats(data, chats)
    write_questions(data, questions)
    changes = [*overrides(RECIPE, model, data, chats), f"evaluation.chat.prompts={questions}"]
    result: dict[str, Any] = {
        "model": model.name,
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers", "everlearn")},
        "runs": {},
    }
    for number, (row, more) in enumerate(ROWS.items()):
        result["runs"][row] = run(RECIPE, options.work / f"run-{number}", [*changes, *more])
    result["with_room"] = with_room(model, options.work, changes)
    files.write_json(options.output, result)


if __name__ == "__main__":
    main()
