"""Two synthetic runs over six domains, as everlearn would leave them on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

DOMAINS = ["sympy", "networkx", "pandas", "matplotlib", "scipy", "torch"]
TASKS = [f"{domain}-subpackage" for domain in DOMAINS]
RECIPE = """\
model: {{path: base-docs}}
domains:
{domains}
method:
- name: {method}
objective: masked
train:
  learning_rate: 0.0003
  max_steps: 60
  per_device_train_batch_size: 32
report: {{tolerate: 1.0}}
run: {{name: {name}, seed: {seed}}}
"""


def estimate(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + 1.1 * half}


def matrix(values: np.ndarray, half: float, unit: str, higher: bool, rows: list[str], columns: list[str]) -> dict:
    return {
        "higher_is_better": higher,
        "unit": unit,
        "rows": rows,
        "columns": columns,
        "cells": [
            [row, column, value, value - half, value + half]
            for row, own in zip(rows, values.tolist(), strict=True)
            for column, value in zip(columns, own, strict=True)
        ],
    }


def results(
    name: str, title: str, forgetting: float, domains: list[str] = DOMAINS, seed: int = 0, learning: float = 0.55
) -> dict[str, Any]:
    """Results of a run in which every later stage costs an earlier domain `forgetting` bits per byte, about."""
    random = np.random.default_rng(seed)
    count = len(domains)
    rows, columns = ["base", *domains], [*domains, "general"]
    score = np.zeros((count + 1, count + 1))
    score[0] = random.uniform(1.9, 2.6, count + 1)
    for stage in range(1, count + 1):
        score[stage] = score[stage - 1]
        for column in range(count):
            if column == stage - 1:
                score[stage, column] -= learning + random.uniform(-0.08, 0.08)
            elif column < stage - 1:
                score[stage, column] += forgetting * random.uniform(0.4, 1.6) / (stage - column)
            else:
                score[stage, column] -= 0.03 * random.uniform(-0.5, 1)
        score[stage, count] += 0.5 * forgetting * random.uniform(0.6, 1.4)
    accuracy = np.zeros((count + 1, count))
    accuracy[0] = random.uniform(0.45, 0.7, count)
    for stage in range(1, count + 1):
        accuracy[stage] = accuracy[stage - 1] - 0.2 * forgetting * random.uniform(0, 1, count)
        accuracy[stage, stage - 1] = accuracy[0, stage - 1] + random.uniform(0.03, 0.1)
    own = [score[i + 1, i] for i in range(count)]
    learnt = {d: estimate(score[0, i] - own[i], 0.02) for i, d in enumerate(domains)}
    gained = {d: estimate(score[0, i] - score[-1, i], 0.02) for i, d in enumerate(domains)}
    lost = {d: estimate(score[-1, i] - own[i], 0.018) for i, d in enumerate(domains[:-1])}
    forward = {d: estimate(score[0, i] - score[i, i], 0.01) for i, d in enumerate(domains) if i}

    def mean(entries: dict[str, dict[str, float]], half: float = 0.008) -> dict[str, dict[str, float]]:
        if not entries:
            return {}
        return {"mean": estimate(float(np.mean([entry["value"] for entry in entries.values()])), half)}

    tasks = [f"{domain}-subpackage" for domain in domains]
    task_lost = {t: estimate(accuracy[i + 1, i] - accuracy[-1, i], 0.03) for i, t in enumerate(tasks[:-1])}
    seconds = 130.0 if name == "plain" else 171.0
    text = {
        "learnt": learnt | mean(learnt),
        "gained": gained | mean(gained),
        "forgotten": lost | mean(lost),
        "forgotten_max": lost | mean(lost),
        "backward_transfer": {d: estimate(-entry["value"], 0.018) for d, entry in lost.items()},
        "forward_transfer": forward | mean(forward),
        "forgetting_rate": mean(lost),
        "general_drift": {"general": estimate(score[-1, -1] - score[0, -1], 0.012)},
        "average": {"mean": estimate(float(score[-1, :-1].mean()), 0.01)},
    }
    text["backward_transfer"] |= mean(text["backward_transfer"])
    return {
        "everlearn": "0.1.0",
        "run": name,
        "methods": [{"name": name, "title": title, "paper": "https://arxiv.org/abs/2302.03241", "options": {"x": 1}}],
        "status": "finished",
        "objective": "masked",
        "model": "base-docs",
        "seed": 7,
        "domains": domains,
        "general": ["general"],
        "matrices": {
            "bits_per_byte": matrix(score, 0.03, "bits/byte", False, rows, columns),
            "loss": matrix(score * 1.9, 0.05, "nats/token", False, rows, columns),
            "perplexity": matrix(np.exp(score * 1.9), 0.9, "per token", False, rows, columns),
            "accuracy": matrix(accuracy, 0.03, "fraction", True, rows, tasks)
            | {"task_domains": dict(zip(tasks, domains, strict=True))},
            "macro_f1": matrix(accuracy - 0.06, 0.03, "fraction", True, rows, tasks)
            | {"task_domains": dict(zip(tasks, domains, strict=True))},
        },
        "summary": {
            "bits_per_byte": text,
            "accuracy": {
                "forgotten": task_lost | mean(task_lost, 0.015),
                "average": {"mean": estimate(float(accuracy[-1].mean()), 0.014)},
            },
        },
        "cost": {
            "seconds": seconds,
            "training_seconds": seconds * 0.7,
            "evaluation_seconds": seconds * 0.3,
            "tokens": count * 245_760,
            "tokens_per_second": count * 245_760 / seconds / 0.7,
            "peak_memory_bytes": 1_450_000_000,
            "stages": [
                {
                    "domain": domain,
                    "seconds": seconds * 0.7 / count,
                    "tokens": 245_760,
                    "steps": 60,
                    "tokens_per_second": 245_760 * count / seconds / 0.7,
                    "final_loss": own[i] * 1.9,
                }
                for i, domain in enumerate(domains)
            ],
        },
        "mixture": [
            {
                "stage": i + 1,
                "domain": d,
                "source": source,
                "asked": asked,
                "realised": got,
                "tokens": int(got * 245_760),
            }
            for i, d in enumerate(domains)
            for source, asked, got in ((d, 0.9, 0.90023), ("replay", 0.1, 0.09977))
        ],
        "notes": ["Encoder blocks hold several documents: attention leaks between them."],
    }


def write_run(folder: Path, found: dict[str, Any], steps: int = 60) -> Path:
    """Write a run folder with its log, recipe and environment."""
    random = np.random.default_rng(11)
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")
    method = found["methods"][0]["name"]
    stream = "\n".join(f"- {json.dumps({'name': domain, 'path': 'text.jsonl'})}" for domain in found["domains"])
    recipe = RECIPE.format(name=json.dumps(found["run"]), method=method, domains=stream, seed=found["seed"])
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "environment.json").write_text(
        json.dumps({"versions": {"python": "3.11.2", "torch": "2.13.0+cpu"}, "hardware": {"cpu": "x86_64", "cores": 2}})
    )
    lines = []
    for stage, domain in enumerate(found["domains"], 1):
        for step in range(1, steps + 1):
            loss = 3.2 + 1.4 * np.exp(-step / 18) + random.normal(0, 0.06)
            line = {"time": "2026-01-01T00:00:00", "stage": stage, "domain": domain, "step": step, "loss": float(loss)}
            line |= {"learning_rate": 3e-4, "grad_norm": 0.9, "tokens_per_second": 10_000.0}
            if method != "plain":
                line[f"{method}/contrast"] = float(0.7 * np.exp(-step / 30) + random.normal(0, 0.02))
            lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_runs(folder: Path) -> list[Path]:
    """Plain training that forgets, and a method that forgets less and learns a little less."""
    plain = results("plain", "Sequential", 0.12)
    das = results("das", "DAS", 0.06, learning=0.52)
    return [write_run(folder / "plain", plain), write_run(folder / "das", das)]
