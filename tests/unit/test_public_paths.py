"""Nothing that is written for other people says where files lie on the machine."""

import json

import pytest
from report_fixture import results, write_run

from everlearn.config.public_paths import recipe_without_folders, still_different, without_folders
from everlearn.report import compare, page
from everlearn.report.card import model_card
from everlearn.report.tables import csv, latex, markdown
from everlearn.report.tables import json as as_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/data/law.jsonl", "law.jsonl"),
        ("/home/ann/my data/law.jsonl", "law.jsonl"),
        ("~/data/law.jsonl", "law.jsonl"),
        ("~ann/data/law.jsonl", "law.jsonl"),
        ("C:\\Users\\ann\\law.jsonl", "law.jsonl"),
        ("file:///home/ann/law.jsonl", "law.jsonl"),
        ("/home/ann/data/*.jsonl", "*.jsonl"),
        ("/home/ann/models/base/", "base"),
        ("'law' (/home/ann/law.jsonl) has 3 rows.", "'law' (law.jsonl) has 3 rows."),
        ("everlearn run /home/ann/r.yaml x.y=/srv/a/b", "everlearn run r.yaml x.y=b"),
        ("https://arxiv.org/abs/2302.03241", "https://arxiv.org/abs/2302.03241"),
        ("suite:docs/law/train.jsonl", "suite:docs/law/train.jsonl"),
        ("data/law.jsonl", "data/law.jsonl"),
        ("hf-org/model-135M", "hf-org/model-135M"),
        ("0.2 bits/byte and/or 3 tokens/s", "0.2 bits/byte and/or 3 tokens/s"),
        ("-1.5 ~ 2", "-1.5 ~ 2"),
        (3, 3),
    ],
)
def test_of_an_absolute_path_the_last_part_is_left(text, shown):
    assert without_folders(text) == shown
    assert without_folders({"a": [text]}) == {"a": [shown]}


def test_paths_with_spaces_inside_a_sentence_are_known_from_the_recipe():
    path = "/home/ann/my data/law.jsonl"
    assert without_folders(f"The file {path} is empty.", known=[path]) == "The file law.jsonl is empty."


def test_different_files_of_one_name_stay_different():
    assert still_different(("/x/a/t.jsonl", "/x/b/t.jsonl")) == ("a/t.jsonl", "b/t.jsonl")
    assert still_different(("/x/a.jsonl", "/y/b.jsonl", "/x/a.jsonl")) == ("a.jsonl", "b.jsonl", "a.jsonl")
    assert still_different(("/x/a/b/c/d/t", "/y/a/b/c/d/t", "/x/a/b/c/d/t")) == ("t (1)", "t (2)", "t (1)")
    assert still_different(("0.1", "0.2")) == ("0.1", "0.2")


def test_a_recipe_without_absolute_paths_keeps_every_letter():
    text = "domains:\n- {name: law,   path: data/law.jsonl}\n"
    assert recipe_without_folders(text) == text
    assert recipe_without_folders("model: /home/ann/base\nrun: {seed: 1}\n") == "model: base\nrun:\n  seed: 1\n"
    assert recipe_without_folders("model: [/home/ann/base") == "model: [base", "also of a recipe that is damaged"


def test_no_output_of_a_report_has_a_folder_of_the_machine(tmp_path):
    secret = tmp_path / "quiet-harbour 4711"
    folders = []
    for name in ("one", "two"):
        found = results(name, name, 0.1, ["a", "b"]) | {"model": str(secret / "models" / name)}
        found["notes"] = [f"The file {secret}/text.jsonl has rows without text; {tmp_path}/x/y.jsonl too."]
        found["methods"][0]["options"] = {"reference": str(secret / "reference")}
        folder = write_run(secret / name, found, steps=1)
        recipe = (folder / "recipe.yaml").read_text().replace("base-docs", f"'{secret}/models/{name}'")
        recipe = recipe.replace('"text.jsonl"', json.dumps(str(secret / f"{name}.jsonl")), 1)
        recipe += f"data: {{cache: '{secret}/cache'}}\n"
        (folder / "recipe.yaml").write_text(recipe.replace('"text.jsonl"', json.dumps(str(secret / "text.jsonl"))))
        (folder / "environment.json").write_text(json.dumps({"command": f"everlearn run {secret}/recipe.yaml"}))
        folders.append(folder)
    assert all(str(secret) in (folder / "recipe.yaml").read_text() for folder in folders), "there they are needed"
    comparison = compare(folders)
    written = [write(comparison) for write in (page, markdown, latex, csv, as_json)]
    written += [page(compare([folder])) for folder in folders]
    written += [
        model_card(json.loads((f / "results.json").read_text()), (f / "recipe.yaml").read_text(), folder=f)
        for f in folders
    ]
    for text in written:
        assert "quiet-harbour" not in text
        assert str(tmp_path) not in text
    assert "path of a" in comparison.differing
    assert "one.jsonl" in written[0]
