"""Make the base model for English: ``make.py prepare DATA``, ``everlearn run recipe.yaml``, ``make.py ship``.

``make base-english DATA=...`` does the three steps. DATA holds ``wikipedia`` and ``books``, each with
``train.jsonl.gz`` and ``validation.jsonl.gz`` (JSON lines with ``text``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from transformers import RobertaConfig

from everlearn import files
from everlearn.config import recipe as recipes
from everlearn.data.readers import read_rows, resolve_files
from everlearn_bench.suites.pretraining import ship, start_model, train_tokenizer

HERE = Path(__file__).parent
SOURCES = ("books", "wikipedia")
VOCABULARY = 12_288
POSITIONS = 512
BUILD = Path("runs/english")
"""Where the recipe looks for its text and its start."""


def configuration() -> RobertaConfig:
    """5.7 M parameters."""
    return RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=POSITIONS + 2,  # RoBERTa counts positions from behind the padding token's number
        type_vocab_size=1,
        layer_norm_eps=1e-5,  # as the released RoBERTa; transformers has another default
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )


def texts(data: Path, split: str) -> list[str]:
    """The distinct texts of all sources, mixed: in the order of their hashes, which is the same everywhere."""
    by_digest: dict[bytes, str] = {}
    for source in SOURCES:
        for file in resolve_files(str(data / source / f"{split}.jsonl.gz")):
            for row in read_rows(file, ["text"]):
                text = str(row.values["text"])
                by_digest[hashlib.blake2b(text.encode(), digest_size=12).digest()] = text
    return [text for _, text in sorted(by_digest.items())]


def prepare(data: Path, out: Path) -> None:
    """Write ``text/{train,validation}.jsonl`` and ``start`` (random weights and tokenizer) into a folder."""
    train = texts(data, "train")
    with files.new_folder(out / "text") as folder:
        for split, part in (("train", train), ("validation", texts(data, "validation"))):
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in part)
            files.write_text(folder / f"{split}.jsonl", "".join(lines))
    with files.new_folder(out / "start") as folder:
        train_tokenizer(train, folder, VOCABULARY, POSITIONS)
        start_model(configuration(), "english", "start").save_pretrained(folder)


def copy_tokenizer(source: Path, destination: Path) -> None:
    """Copy a tokenizer without the white space in its JSON, which would take it from 0.4 to 0.8 MB."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        compact = json.dumps(json.loads((source / name).read_text("utf-8")), ensure_ascii=False, separators=(",", ":"))
        files.write_text(destination / name, compact + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help=f"text and start into {BUILD}").add_argument("data", type=Path)
    commands.add_parser("ship", help="weights, tokenizer and log beside this script")
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.data, BUILD)
        return
    recipe = recipes.load(HERE / "recipe.yaml")
    run = recipe.folder()
    copy_tokenizer(BUILD / "start", HERE)
    files.write_text(HERE / "metrics.jsonl", (run / "metrics.jsonl").read_text("utf-8"))
    print(ship(run / f"stage-01-{recipe.domains[0].name}", HERE))


if __name__ == "__main__":
    main()
