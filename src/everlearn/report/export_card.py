"""Write the card of an exported model: front matter for the hub, and metrics as a model-index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import EvalResult, ModelCardData

from everlearn.comparison import formatting as fmt
from everlearn.evaluation import METRICS, Results
from everlearn.evaluation.build import BASE
from everlearn.evaluation.estimate import Estimate
from everlearn.report.card import TASKS, TRUSTED, fenced, importing, needing
from everlearn.report.tables import escape_markdown
from everlearn.version import __version__
from everlearn.wording import count

WRITTEN = "text2text-generation"
"""Task of text-to-text models in a model-index, which must name one although the hub has no pipeline for them."""


@dataclass(frozen=True)
class Origin:
    """The origin of a domain: its name, and its datasets on the hub."""

    name: str
    hub_ids: tuple[str, ...] = ()
    subset: str | None = None
    """Configuration name of a single dataset."""


@dataclass(frozen=True)
class Exported:
    """Facts of an export that its run's results do not have.

    Attributes:
        row: label of the checkpoint: the domain learnt last.
        name: name of the model.
        origins: origins of the learnt domains, in order.
        adapter: whether it is only an adapter.
        base_model: hub id of the base model, if it has one.
        license: the hub's identifier of the licence, if known.
        language: language codes from the base model's card.
        memory: sentences on what its memory reveals; empty if it has none.
        as_scored: whether the model alone is the one that was scored.
        steps: optimizer steps up to this stage.
        tokens: tokens trained on up to this stage.
        architecture: name of the transformers class that loads the model. Default: the objective's Auto class.
        own_module: the module that must be imported first, if the architecture is not one of transformers.
        own_code: whether it needs the code that is beside it (`trust_remote_code`).
        difference: a sentence on how the weights differ from those that were scored; empty if they do not.
    """

    row: str
    name: str
    origins: Sequence[Origin]
    adapter: bool = False
    base_model: str | None = None
    license: str | None = None
    language: Sequence[str] = ()
    memory: Sequence[str] = ()
    as_scored: bool = True
    steps: int = 0
    tokens: int = 0
    architecture: str | None = None
    own_module: str | None = None
    own_code: bool = False
    difference: str = ""

    @property
    def learnt(self) -> list[str]:
        """Return the names of the domains, in order."""
        return [origin.name for origin in self.origins]


def eval_results(results: Results, exported: Exported) -> list[EvalResult]:
    """Return the scores of the exported checkpoint: every metric and column that was measured on it."""
    known = {origin.name: origin for origin in exported.origins}
    pipeline = TASKS[results.objective][0] or WRITTEN
    scores = []
    for name, table in results.matrices.items():
        fine_tuned = "predictions" in METRICS[name].reads
        for row, column, value, *_ in table.cells:
            if row == exported.row:
                origin = known.get(column, Origin(column))
                scores.append(
                    EvalResult(
                        task_type="text-classification" if fine_tuned else pipeline,
                        # A dataset that is not on the hub needs its own type, or its scores would be listed under
                        # another one's.
                        dataset_type=origin.hub_ids[0] if len(origin.hub_ids) == 1 else column,
                        dataset_name=column,
                        dataset_config=origin.subset,
                        metric_type=name,
                        metric_name=f"{table.title or name}{' of a fine-tuned copy' if fine_tuned else ''}",
                        metric_value=value,
                    )
                )
    return scores


def export_card(results: Results, exported: Exported) -> str:
    """Return the README.md of an exported stage.

    Args:
        results: results of its run.
        exported: facts of the export.
    """
    pipeline, loader = TASKS[results.objective]
    names = [method.name for method in results.methods]
    scores = eval_results(results, exported) if exported.as_scored else []
    datasets = [hub_id for origin in exported.origins for hub_id in origin.hub_ids]
    front = ModelCardData(
        base_model=exported.base_model,
        base_model_relation=("adapter" if exported.adapter else "finetune") if exported.base_model else None,
        datasets=list(dict.fromkeys(datasets)) or None,
        eval_results=scores or None,
        language=list(exported.language) or None,
        library_name="peft" if exported.adapter else "transformers",
        license=exported.license,
        model_name=exported.name,
        pipeline_tag=pipeline,
        tags=["everlearn", "continual-learning", "continual-pretraining", *names],
    )
    if not scores:
        front.model_name = None  # it is only valid with a model-index
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {escape_markdown(exported.name)}",
        _introduction(results, exported),
        *_scores(results, exported),
        "## Use",
        fenced("python", importing(exported.own_module) + _usage(exported, exported.architecture or loader)),
        *([f"It loads {needing(exported.own_module)}."] if exported.own_module else []),
        *_memory(exported),
        "## Methods",
        "\n".join(
            f"- {escape_markdown(method.title)}{f': <{method.paper}>' if method.paper else ''}"
            for method in results.methods
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(results: Results, exported: Exported) -> str:
    stream = " → ".join(escape_markdown(name) for name in exported.learnt)
    start = f"Training started from {escape_markdown(exported.base_model)}. " if exported.base_model else ""
    methods = " + ".join(escape_markdown(method.title) for method in results.methods)
    form = "An adapter (PEFT) of a language model" if exported.adapter else "A language model"
    return (
        f"{form} that learnt these domains one after another: {stream}. {start}Objective: {results.objective}; "
        f"protection against forgetting: {methods}; {count(exported.steps, 'step')} on "
        f"{count(exported.tokens, 'token')}; seed "
        f"{results.seed}. Made with everlearn {escape_markdown(__version__)}."
    )


def _scores(results: Results, exported: Exported) -> list[str]:
    if not exported.as_scored:
        titles = [escape_markdown(method.title) for method in results.methods if not method.as_saved]
        return [
            f"**This model alone is not what was scored.** {fmt.listing(titles)} evaluates with parts in "
            "its memory (adapters, gates or prompts), which only everlearn can load. So there are no scores here."
        ]
    parts = ["## Scores", "On held-out text and end tasks, before and after. In brackets: 95 % intervals."]
    if exported.difference:
        parts.append(exported.difference)
    for name, table in results.matrices.items():
        estimates = table.estimates()
        columns = [column for column in table.columns if (exported.row, column) in estimates]
        if not columns:
            continue
        shown = [value for column in columns for row in (BASE, exported.row) if (value := estimates.get((row, column)))]
        places = fmt.decimals(each.value for each in shown)
        title = f"{table.title or name} {'↑' if table.higher_is_better else '↓'}"
        lines = [f"| {title} | base model | this model |", "|---|---:|---:|"]
        for column in columns:
            before, after = (estimates.get((row, column), Estimate()) for row in (BASE, exported.row))
            cells = [fmt.MISSING if each.value is None else fmt.estimate(each, places) for each in (before, after)]
            lines.append(f"| {escape_markdown(column)} | {cells[0]} | {cells[1]} |")
        parts.append("\n".join(lines))
    return parts


def _usage(exported: Exported, loader: str) -> str:
    if not exported.adapter:
        return (
            f"from transformers import AutoTokenizer, {loader}\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({exported.name!r})\n"
            f"model = {loader}.from_pretrained({exported.name!r}{TRUSTED if exported.own_code else ''})"
        )
    base = exported.base_model or "the base model"
    return (
        f"from peft import PeftModel\nfrom transformers import AutoTokenizer, {loader}\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({exported.name!r})\n"
        # By default transformers loads the stored type, often 16 bits, but the adapter was trained on 32 bits.
        f'base = {loader}.from_pretrained({base!r}, dtype="float32")\n'
        f"model = PeftModel.from_pretrained(base, {exported.name!r})"
    )


def _memory(exported: Exported) -> list[str]:
    if not exported.memory:
        return []
    command = f"everlearn learn {exported.name} --domain name=file.jsonl --into runs/next"
    return [
        "## Memory",
        "The memory of the methods is in `everlearn/`, so that the next domain can be learnt from here:",
        fenced("bash", command),
        *(escape_markdown(sentence) for sentence in exported.memory),
    ]
