"""Write the recipe of `everlearn init`: about 25 lines, adapted to a model and corpora.

If no model or corpus is named, the recipe has an example to edit.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everlearn.commands.recommendation import EVIDENCE, METHOD, learning_rate, models_in_words, rate_text
from everlearn.commands.sizing import FEWEST_STEPS, ROWS_PER_STEP, Sizing
from everlearn.commands.yaml_text import commented, flow_text, method_text, rate_or_value, value_text
from everlearn.run.progress import Reporter
from everlearn.wording import be, count

if TYPE_CHECKING:
    from everlearn.commands.data_probe import Probe
    from everlearn.commands.model_probe import Fit, ModelProbe

EXAMPLE_MODEL, EXAMPLE_KIND, EXAMPLE_PARAMETERS = "FacebookAI/roberta-base", "encoder", 125_000_000
EXAMPLE_DOMAINS = {"reviews": "data/reviews.jsonl", "papers": "data/papers.txt"}
EXAMPLE_COLUMNS = {"text_column": "prompt", "target_column": "answer"}
"""Columns of the example's domains with `--task sft`."""
EXAMPLE_GENERAL = "data/wikipedia.txt"
GENERAL = "general"
"""Name of the general text in tables."""
BUILT_IN_GENERAL = {
    "path": "suite:docs/general/train.jsonl",
    "validation": "suite:docs/general/apart.jsonl",
    "max_documents": 2000,
}
"""English documentation of the libraries that are installed with everlearn; nothing is downloaded for it."""
WARM_UP = 0.05
"""Share of each domain's steps in which the learning rate rises."""
USES_BUILT_IN = (
    "You named no `--general`, and {looks} English, so `general` is a built-in text: documentation of installed "
    "libraries. Text like that of the model's pre-training protects more of what it knows, and shows better what it "
    "loses."
)
WITHOUT_GENERAL = (
    "Without `general` the loss of earlier knowledge is not measured, and the method protects only the knowledge that "
    "the first domain's text needs. Name text like that of the model's pre-training."
)


@dataclass
class FirstRecipe:
    """A recipe with its comments and notes for the user.

    Attributes:
        values: the recipe as plain data; a `general` whose path is None is written as a comment.
        comments: by dotted key.
        notes: sentences for the user.
    """

    values: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, comment: str = "") -> None:
        """Set a key of the recipe."""
        self.values[key] = value
        self.comments[key] = comment

    def text(self, file: str = "recipe.yaml") -> str:
        """Return the recipe as commented YAML."""
        file = shlex.quote(file)
        calls = {
            f"validate {file}": "check it",
            f"plan {file}": "estimate its cost: steps, memory, time",
            f"run {file}": "start it, in the folder that relative paths start from",
            "init --all -": "show every other key, with its default",
        }
        width = max(map(len, calls))
        head = [f"# everlearn {call:<{width}}  {meaning}" for call, meaning in calls.items()]
        return "\n".join([*head, commented(list(self._lines()))])

    def _lines(self) -> Iterator[tuple[str, str]]:
        for key, value in self.values.items():
            comment = self.comments[key]
            if key == "domains":
                yield "domains:", comment
                for number, domain in enumerate(value):
                    yield f"  - {flow_text(domain)}", self.comments.get(f"domains.{number}", "")
            elif key == "method":
                yield f"method: {method_text(value)}", comment
            elif key == "general" and value["path"] is None:
                yield f"# general: {flow_text({'path': EXAMPLE_GENERAL})}", comment
            elif key == "general":
                yield f"general: {flow_text(value)}", comment
            elif isinstance(value, Mapping):
                yield f"{key}:", comment
                for name, own in value.items():
                    yield f"  {name}: {rate_or_value(name, own)}", self.comments.get(f"{key}.{name}", "")
            else:
                yield f"{key}: {value_text(value)}", comment


def first_recipe(
    model: str | None = None,
    domains: Mapping[str, str] | None = None,
    general: str | None = None,
    task: str | None = None,
    reporter: Reporter | None = None,
) -> FirstRecipe:
    """Write a recipe that fits a model and corpora.

    Args:
        model: folder or hub id of the model; None for an example.
        domains: name → path of each corpus; None for examples.
        general: path of general text.
        task: `sft` for prompts and answers, `pretrain` for text. None: chosen by the columns of the corpora.
        reporter: shows progress; None for no output.

    Raises:
        EverlearnError: the model or a corpus cannot be read, or does not fit the task.
    """
    reporter = reporter or Reporter()
    model_probe: ModelProbe | None = None
    if model is not None:
        with reporter.activity("Reading the configuration and the tokenizer of the model", None):
            from everlearn.commands.model_probe import ModelProbe

            model_probe = ModelProbe(model)
        task = model_probe.task(task)
    probes, known = _probes(domains or {}, general, task, model_probe, reporter)
    examples = any(each.columns.answers for each in probes.values()) if probes else task == "sft"
    sizing = Sizing(model_probe, probes.values(), known)
    for name, each in probes.items():
        sizing.check(each, f"--domain {name}")
    if known is not None:
        sizing.check(known, "--general")
    recipe = FirstRecipe()
    about = "edit: hub id or folder; encoder, decoder or encoder-decoder"
    recipe.put("model", model or EXAMPLE_MODEL, model_probe.words() if model_probe else about)
    recipe.put("domains", _domains(recipe, probes, sizing, examples), "learnt in this order; 5 % of each is held out")
    recipe.put("general", *_general(recipe, general, known, probes, sizing.alone))
    options = " and ".join(f"`everlearn methods {method['name']}`" for method in METHOD)
    recipe.put("method", [dict(method) for method in METHOD], f"recommended, see {EVIDENCE}; {options}")
    if model_probe:
        recipe.put("objective", model_probe.objective, f"the one of this kind of model ({model_probe.kind})")
    recipe.put("data", {"block_size": sizing.block_size})
    limit = f"; the model reads up to {model_probe.longest:,}" if model_probe and model_probe.longest else ""
    recipe.comments["data.block_size"] = f"tokens in a row{limit}"
    if sizing.cuts:
        recipe.notes.append(
            f"One example in twenty has more than {sizing.needed:,} tokens, and a row has {sizing.block_size:,}; "
            "what is longer is cut, and `everlearn data` says how many."
        )
    if note := _rate_note(probes, model_probe):
        recipe.notes.append(note)
    fit = None
    if model_probe:
        with reporter.activity("Fitting a batch to the memory", None):
            fit = model_probe.fit(METHOD, max(1, len(probes)), ROWS_PER_STEP, sizing.block_size)
    recipe.put("train", _train(recipe, model_probe, fit, sizing, examples), "transformers.TrainingArguments")
    recipe.put("run", {"name": "first"}, "kept in runs/first")
    return recipe


def _probes(
    domains: Mapping[str, str], general: str | None, task: str | None, model: ModelProbe | None, reporter: Reporter
) -> tuple[dict[str, Probe], Probe | None]:
    """Examine the domains' corpora, by name, and the general text if one is named."""
    if not domains and general is None:
        return {}, None
    from everlearn.commands.data_probe import probe

    _check_names(domains)
    alone = model is not None and model.kind == "encoder-decoder"
    learner = "An encoder-decoder model" if alone else None
    known = () if model is None else (model.tokenizer, model.kind)
    probes = {}
    with reporter.activity("Reading the corpora", len(domains) + (general is not None)) as done:
        for name, path in domains.items():
            probes[name] = probe(path, f"--domain {name}", task, learner, *known)
            done(len(probes))
        if general is None:
            return probes, None
        return probes, probe(general, "--general", "sft" if alone else "pretrain", learner, *known)


def _domains(recipe: FirstRecipe, probes: Mapping[str, Probe], sizing: Sizing, examples: bool) -> list[dict[str, Any]]:
    if not probes:
        recipe.comments["domains.0"] = "edit: files, folders, globs or hub ids"
        columns = EXAMPLE_COLUMNS if examples else {}
        return [{"name": name, "path": path, **columns} for name, path in EXAMPLE_DOMAINS.items()]
    from everlearn.data.broken_lines import broken_lines
    from everlearn.data.notes import undesired_note

    listed = []
    for number, (name, probe) in enumerate(probes.items()):
        domain: dict[str, Any] = {"name": name, "path": probe.path, **probe.keys}
        passes, steps = sizing.passes, sizing.steps(probe)
        listed.append(domain)
        more = "" if probe.complete else "more than "
        recipe.comments[f"domains.{number}"] = (
            f"{more}{count(probe.documents, 'document')}, {_tokens(sizing.tokens(probe))} tokens, "
            f"about {count(steps * passes, 'step')}"
        )
        if steps * passes < FEWEST_STEPS / 4:
            verb = "makes" if passes == 1 else "make"
            recipe.notes.append(
                f"'{name}' has so little text that {count(passes, 'pass')} over it {verb} about "
                f"{count(steps * passes, 'step')}: hardly anything can be learnt or measured there."
            )
        if probe.broken:
            recipe.notes.append(broken_lines(name))
        if probe.glued and not sizing.alone:
            recipe.notes.append(
                f"'{name}': a prompt and its answer are joined as they are, and nothing stands between them. End each "
                "prompt with a line end, or begin each answer with a space."
            )
        if probe.unread:
            keys = " and ".join(f"`{key}: {value}`" for key, value in probe.columns.keys.items())
            recipe.notes.append(
                f"'{name}': the columns of {keys} are read, and not read is {', '.join(map(repr, probe.unread))}. Join "
                "what a prompt needs into one column; `--task pretrain` reads text instead."
            )
        if probe.nested:
            column = probe.columns.text_column
            recipe.notes.append(
                f"'{name}': the column '{column}' is read, and a longer text inside another one is not. To read it, "
                f'write `text_column: "{{{probe.nested}}}"`, or for both `text_column: '
                f'"{{{column}}}\\n\\n{{{probe.nested}}}"`.'
            )
        if probe.undesired:
            recipe.notes.append(undesired_note(name, probe.undesired))
        if probe.columns.form is not None and probe.columns.form.note:
            recipe.notes.append(f"'{name}': {probe.columns.form.note}")
    return listed


def _general(
    recipe: FirstRecipe, path: str | None, known: Probe | None, probes: Mapping[str, Probe], alone: bool
) -> tuple[dict[str, Any], str]:
    """Return the general text, and its comment."""
    if path is not None:
        keys = {} if known is None else known.keys
        return {"path": path, **keys}, "what the model knew before: it is protected, and its drift measured"
    if not probes:
        return {"path": EXAMPLE_GENERAL}, "edit: text like that of pre-training, to protect and measure"
    english = [f"'{name}'" for name, probe in probes.items() if probe.english]
    if english and not alone:
        some = f"{', '.join(english)} {'look' if len(english) > 1 else 'looks'}"
        subject = "your text looks" if len(english) == len(probes) else some
        recipe.notes.append(USES_BUILT_IN.format(looks=subject))
        return dict(BUILT_IN_GENERAL), "none was named: this is documentation of installed libraries, in English"
    recipe.notes.append(WITHOUT_GENERAL)
    return {"path": None}, "none was named: what is lost of it is not measured, and hardly protected"


def _rate_note(probes: Mapping[str, Probe], model: ModelProbe | None) -> str | None:
    """Return a note that text domains and prompt-answer domains share one learning rate here."""
    text = [name for name, probe in probes.items() if not probe.columns.answers]
    if model is None or not text or len(text) == len(probes):
        return None
    rates = (learning_rate(model.kind, model.parameters, examples=examples) for examples in (True, False))
    lower, rate = map(rate_text, rates)
    return (
        f"The learning rate is that of prompts and answers, {lower}, though {', '.join(map(repr, text))} "
        f"{be(len(text))} text, for which the rule says {rate}. To give a domain a rate of its own, write "
        f"`train: {{learning_rate: {rate}}}` into it."
    )


def _train(
    recipe: FirstRecipe, model: ModelProbe | None, fit: Fit | None, sizing: Sizing, examples: bool
) -> dict[str, Any]:
    kind, parameters = (model.kind, model.parameters) if model else (EXAMPLE_KIND, EXAMPLE_PARAMETERS)
    rows = fit.rows if fit else ROWS_PER_STEP
    train: dict[str, Any] = {"num_train_epochs": sizing.passes, "per_device_train_batch_size": rows}
    what = ", prompts and answers" if examples else ""
    comments = {
        "num_train_epochs": "passes over each domain; or max_steps",
        "per_device_train_batch_size": fit.words() if fit else "edit: what fits your memory",
        "gradient_accumulation_steps": f"{ROWS_PER_STEP} rows a step",
        "learning_rate": f"a starting point for {models_in_words(kind, parameters)}{what}: docs/learning-rates.md",
        "warmup_steps": "share of a domain's steps",
        "bf16": "true on a GPU that computes in bfloat16",
    }
    if rows < ROWS_PER_STEP:
        train["gradient_accumulation_steps"] = ROWS_PER_STEP // rows
    train["learning_rate"] = learning_rate(kind, parameters, examples=examples)
    train |= {"warmup_steps": WARM_UP, "bf16": bool(fit and fit.half)}
    if fit and fit.half:
        comments["bf16"] = "this machine's GPU computes in bfloat16"
    if fit and not fit.fits:
        recipe.notes.append(fit.sentence())
    recipe.comments |= {f"train.{key}": text for key, text in comments.items()}
    return train


def _check_names(domains: Mapping[str, str]) -> None:
    """Raise ``RecipeError`` if a name cannot be part of a file name, or is taken."""
    from everlearn.errors import RecipeError
    from everlearn.options import TAKEN, slug

    seen: dict[str, str] = {}
    for name in domains:
        try:
            slug(name, "a domain's name")
        except ValueError as error:
            raise RecipeError(f"`--domain {name}=…`: {error}.") from None
        if name in TAKEN or name == GENERAL:
            raise RecipeError(f"`--domain {name}=…`: the name is taken by a row or column of tables; choose another.")
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise RecipeError(f"`--domain` has the names '{other}' and '{name}'; they must differ in more than case.")


def _tokens(tokens: float) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e5 else f"{tokens:,.0f}"
