"""Write docs/systems.md: every system of the mission with the command that runs it, its test and its committed result.

    python docs/systems.py

Methods with their variants, analyses and merging methods come from the registries. A result of a method is a page of
docs/results on which a row of a table begins with its title and has numbers; where there is none, the table says so.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import everlearn.diagnostics.analyses  # noqa: F401  registers the analyses
from everlearn import plugins
from everlearn.diagnostics.registry import ANALYSES
from everlearn.merging import MERGE_METHODS
from everlearn.methods import REGISTRY
from everlearn.methods.sequential import PLAIN

PAGE = Path(__file__).with_name("systems.md")
RESULTS = Path(__file__).with_name("results")
CHECKS = {"README.md", "overhead.md", "endurance.md", "reports.md", "real-data.md", "mutation.md"}
NOTHING_LEARNT = CHECKS | {"dpo.md", "analyses.md", "merging.md"}
"""Pages whose rows are no scores of a stream, or are checks of something else."""
MISSING = "none is committed"
INTRODUCTION = """\
Every method, benchmark, study and analysis: the command that runs it, its test, and the committed results in which it
has a row with numbers. `python docs/systems.py` writes this page; a test parses the commands and looks for the files.
`recipe.yaml` is the one that `everlearn init` writes; what else a method needs (a general text, prompts with answers,
an encoder) its refusal says."""

TESTS: Mapping[str, str] = {
    "adapters": "test_methods_lora.py",
    "averaging": "test_merging.py",
    "composition": "test_methods_composition.py",
    "distillation": "test_methods_distillation.py",
    "gates": "test_methods_gates.py",
    "growth": "test_methods_growth.py",
    "masks": "test_methods_masks.py",
    "penalties": "test_penalties.py",
    "prompts": "test_methods_prompts.py",
    "rehearsal": "test_methods_rehearsal.py",
    "tricks": "test_methods_tricks.py",
    "dap_adapter": "test_method_adapter.py",
    "inc_lora": "test_peft_adapter.py",
    "corda": "test_method_residual.py",
    "lora_null": "test_method_residual.py",
    "pissa": "test_method_residual.py",
    "inf_lora": "test_method_inf_lora.py",
    "compositional_modules": "test_method_compositional_modules.py",
    "mocl": "test_method_modules.py",
    "k_adapter": "test_method_modules.py",
    "side_tuning": "test_method_side_tuning.py",
    "kd_logits": "test_method_kd_forms.py",
    "kd_representations": "test_method_kd_forms.py",
    "kd_contrast": "test_method_kd_forms.py",
    "kd_seed": "test_method_kd_forms.py",
    "sdft": "test_method_sdft.py",
    "replay_generated_chats": "test_methods_rehearsal.py",
    "hat": "test_method_hat.py",
    "elle": "test_method_elle.py",
    "das": "test_method_das.py",
    "das_released": "test_method_das_released.py",
    "migu": "test_method_migu.py",
    "sparse_memory": "test_method_sparse_memory.py",
    "budget": "test_method_budget.py",
    "ewc_released": "test_methods_penalties.py",
    "forget_me_not": "test_methods_penalties.py",
    "multi_task_adaptation": "test_methods_penalties.py",
    "lfpt5": "test_method_lfpt5.py",
    "replay": "test_method_replay.py",
    "stream_schedule": "test_stream_schedule.py",
    "ulmfit": "test_stream_schedule.py",
    PLAIN: "test_any_model.py",
}
"""Name of a variant, method or family → its file in tests/unit; the first that is listed counts."""


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: the system.
        command: the command that runs it.
        test: its test, relative to the root.
        results: files of docs/results in which it has a row.
        remark: what the result leaves out, or why there is none.
    """

    name: str
    command: str
    test: str
    results: Sequence[str] = ()
    remark: str = ""

    def row(self) -> str:
        """Return the row in Markdown."""
        pages = ", ".join(f"[{Path(name).stem}](results/{name})" for name in self.results)
        result = f"{pages}; {self.remark}" if pages and self.remark else pages or self.remark or MISSING
        cells = self.name, f"`{self.command}`", f"`{self.test}`", result
        return f"| {' | '.join(cells)} |"


def methods() -> list[System]:
    """Return every method and every variant."""
    pages_by_title = results_by_title()
    systems = []
    with plugins.hidden():
        for name, cls in sorted(REGISTRY.items(), key=lambda item: (item[1].__module__, item[0])):
            family = cls.__module__.split(".")[2]
            for own, title in [(name, cls.title), *((each.name, each.title) for each in cls.variants)]:
                test = next(TESTS[key] for key in (own, name, family) if key in TESTS)
                results = [*pages_by_title.get(title.lower(), []), *METHOD_RESULTS.get(own, ())]
                command = f"everlearn run recipe.yaml method={own}"
                systems.append(System(title, command, f"tests/unit/{test}", results, REMARKS.get(own, "")))
    return systems


def results_by_title() -> dict[str, list[str]]:
    """Return the pages that have a row with numbers, by what the row begins with, in lower case."""
    pages_by_title: dict[str, list[str]] = {}
    for page in sorted(RESULTS.glob("*.md")):
        if page.name in NOTHING_LEARNT:
            continue
        for line in page.read_text(encoding="utf-8").splitlines():
            first, *rest = [cell.strip(" `*") for cell in line.removeprefix("|").split(" | ")]
            if line.startswith("| ") and any(re.search(r"\d", cell) for cell in rest):
                pages = pages_by_title.setdefault(first.lower(), [])
                pages += [] if page.name in pages else [page.name]
    return pages_by_title


METHOD_RESULTS = {
    "budget": ["budget.md"],
    "sdft": ["chat-remedies.md"],
    "replay_generated_chats": ["chat-remedies.md"],
}
"""Name of a method → pages of its own, whose rows are its settings."""
REMARKS: Mapping[str, str] = {
    "adapter_cl": "in six-domains it chose once for each test set",
    **dict.fromkeys(("dap_prompt", "bcl", "classic", "cpt", "hat_all", "hat_adapter", "dga"), "one seed"),
    "das_released": "with importance on 192 rows, as many as a domain has; plain training learns nothing there",
    "ewc_released": "with importance on 192 rows, as many as a domain has, and not on 10,000",
    "recadam_released": "at a learning rate of 2e-5, which its γ is for",
    "selective_init": "plain training to the last digit: it chose the latest model",
    "forever": "plain training to the last digit: it replayed nothing",
    "reptile_released": "plain training to the last digit: it acts every 500 steps, and a domain had 24",
    "stream_schedule": "the same as the infinite schedule, which is its default",
    "continual_t0": "1 % was four of 480 examples, and it forgets as much as plain training; a stream in which it is "
    "80 of 8,000 (`benchmarks/small-rows/tasks.yaml`) was begun and stopped for time",
    "forget_me_not": "on reading comprehension one run, beside plain training at two rates",
    "lfpt5": "with an encoder-decoder of 7 M none of its written examples is usable, so its replay never acts; with a "
    "decoder all are",
}
"""Name of a method or variant → what its result leaves out, or why it has none."""


def table(systems: Iterable[System]) -> str:
    """Return the table of some systems."""
    head = "| system | command | test | result |\n|---|---|---|---|"
    return "\n".join([head, *(system.row() for system in systems)])


BENCHMARKS = [
    System(
        "Built-in documentation (`docs`)",
        "everlearn bench docs --methods sequential,das,ewc --seeds 0",
        "tests/unit/test_suites.py",
        ["demo.md"],
    ),
    System(
        "Six domains and their end tasks (the DAS paper)",
        "everlearn bench six-domains --methods all --seeds 0,1,2",
        "tests/unit/test_six_domains.py",
        ["six-domains.md", "six-domains-longer.md"],
    ),
    System(
        "Ablations of DAS",
        "everlearn bench six-domains --methods ablations --seeds 0,1,2",
        "tests/unit/test_six_domains.py",
        ["six-domains.md"],
    ),
    System(
        "Standard continual learning, order 1, with and without MIGU",
        "everlearn bench standard-cl --methods all --orders 1 --seeds 0,1,2",
        "tests/unit/test_continual_tasks.py",
        ["standard-cl-decoder.md", "standard-cl-encdec.md"],
    ),
    System(
        "Orders 2 and 3",
        "everlearn bench standard-cl --methods ft,ft+migu,lora,lora+migu --orders 2,3",
        "tests/unit/test_continual_tasks.py",
        ["standard-cl-decoder.md"],
        "one seed; full fine-tuning, LoRA, IncLoRA, O-LoRA and LoRAReplay, each with and without MIGU",
    ),
    System(
        "Long sequence, orders 4 to 6",
        "everlearn bench long-sequence --methods ft,ft+migu --orders 4,5,6",
        "tests/unit/test_continual_tasks.py",
        ["standard-cl-decoder.md"],
        "full fine-tuning alone, one seed; order 6 was not run",
    ),
    System(
        "Curve of MIGU's threshold",
        "everlearn sweep recipe.yaml --methods migu --set "
        "method.migu.threshold=0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.95,0.99",
        "tests/unit/test_method_migu.py",
        ["small-rows.md"],
        "on all weights and on LoRA, one seed, with lower rates beside it",
    ),
    System(
        "GLUE: fine-tuning on one task beside general text",
        "everlearn bench glue --methods all --orders 1,2,3,4,7,8,9,10,11 --seeds 0,1,2",
        "tests/unit/test_glue.py",
        ["glue.md"],
        "the remedies on subj and trec, which are not of GLUE; of sst-2, mnli, qqp and rte plain fine-tuning of the "
        "5.7 M encoder learns nothing, and the data of the other five were not at hand",
    ),
    System(
        "Code: HumanEval, and tasks of no domain",
        "everlearn bench code --methods sequential,migu,lora,lora+migu --seeds 0,1,2 --run-code",
        "tests/unit/test_eval_programs.py",
        ["code.md"],
    ),
    System(
        "Does an LSTM forget more than a CNN?",
        "everlearn bench lstm-cnn --methods all --orders hard-last --seeds 1,2,3",
        "tests/unit/test_lstm_cnn.py",
        ["lstm-cnn.md"],
        "in streams of three and of four tasks, in which AG News stands for CoLA",
    ),
    System(
        "A causal stream and a masked one at equal compute",
        "everlearn sweep recipe.yaml --methods sequential,mas,ewc,replay --equal-compute",
        "tests/unit/test_frontier.py",
        ["frontier.md", "frontier-causal.md", "frontier-masked.md"],
    ),
    System(
        "Preferences (DPO), with and without protection",
        "python benchmarks/dpo.py",
        "tests/unit/test_bench_chat_models.py",
        ["dpo.md"],
    ),
    System(
        "BIG-bench tasks",
        "everlearn bench m2d2 --methods sequential suite.big_bench=100",
        "tests/unit/test_big_bench.py",
        ["big-bench.md"],
        "the repository's files were not at hand: formats are tested on fixtures, and in the result four of the five "
        "tasks are other questions that come near",
    ),
    System(
        "Continual pre-training, then fine-tuning, with a control for forgetting (Cossu et al. 2022)",
        "everlearn run recipes/pretrain-then-finetune.yaml",
        "tests/cli/test_documents.py",
        ["small-rows.md"],
    ),
    System(
        "Tasks of lm_eval",
        "everlearn run recipe.yaml 'evaluation.lm_eval=[hellaswag]'",
        "tests/integration/test_lm_eval.py",
        ["lm-eval.md"],
    ),
]
STUDIES = [
    System(
        "M2D2 study: similar and random order, each domain alone",
        "everlearn bench m2d2 --methods sequential,separate --orders similar,random-1 --seeds 0,1,2",
        "tests/unit/test_m2d2.py",
        ["m2d2.md"],
        "one random order; a second at a twentieth of the text, one seed",
    ),
    System(
        "M2D2 study: sizes of the model",
        "everlearn bench m2d2 --methods sequential,small --seeds 0,1,2 --settings benchmarks/m2d2/small.yaml",
        "tests/unit/test_transfer.py",
        ["m2d2.md"],
        "the smaller model is the first layer of the larger one, trained on: they have not read "
        "the same text equally long; three widths that have, at a twentieth of the text, one seed",
    ),
    System(
        "M2D2 study: super-domains swapped",
        "everlearn bench m2d2 --methods sequential --orders swapped",
        "tests/unit/test_m2d2.py",
        ["m2d2.md"],
        "at a twentieth of the text, one seed",
    ),
    System(
        "M2D2 study: domains of one size",
        "everlearn bench m2d2 --methods sequential --settings benchmarks/m2d2/balanced.yaml",
        "tests/unit/test_m2d2.py",
        ["m2d2.md"],
        "every domain of the committed grids has as much text; domains of unlike sizes at a twentieth of it, one seed",
    ),
    System(
        "M2D2 study: batch size",
        "everlearn sweep recipes/m2d2/small.yaml --set train.per_device_train_batch_size=16,64",
        "tests/cli/test_sweep.py",
        ["m2d2.md"],
        "2, 8 and 32 rows a step at a twentieth of the text, one seed",
    ),
    System(
        "M2D2 study: masked model",
        "everlearn bench m2d2 --methods sequential --model benchmarks/bases/english-encoder objective=masked",
        "tests/unit/test_m2d2.py",
        ["m2d2.md"],
        "at a twentieth of the text, one seed",
    ),
    System(
        "Scenarios A → B, A → A + B, A + B",
        "everlearn sweep recipe.yaml --methods scenarios --seeds 1,2,3",
        "tests/cli/test_sweep.py",
        ["scenarios.md"],
    ),
    System(
        "Re-warming the learning rate in each domain, or not (Gupta et al. 2023)",
        "everlearn sweep recipe.yaml --methods sequential --set train.warmup_steps=0,0.1",
        "tests/unit/test_stream_schedule.py",
        ["scenarios.md"],
    ),
    System(
        "Easy and hard domains first",
        "everlearn sweep recipe.yaml --orders 'easy-first:runs/first;hard-first:runs/first'",
        "tests/unit/test_bench_orders.py",
        ["lstm-cnn.md"],
    ),
    System(
        "One model per domain, or task (PerTaskFT)",
        "everlearn sweep recipe.yaml --methods separate",
        "tests/cli/test_sweep.py",
        ["m2d2.md", "small-rows.md"],
        "of tasks not run: four trainings for a number that plain training's diagonal comes near",
    ),
    System(
        "All domains at once (MTL)",
        "everlearn sweep recipe.yaml --methods pool",
        "tests/cli/test_sweep.py",
        ["standard-cl-decoder.md", "standard-cl-encdec.md"],
    ),
    System(
        "Plain training stopped at equal learning, or at a lower rate",
        "everlearn sweep recipe.yaml --methods sequential --set train.learning_rate=1e-4,3e-4",
        "tests/unit/test_frontier.py",
        ["six-domains-longer.md"],
    ),
]
NOT_HERE = """\
## Not here

Related work that is not written yet, with what comes nearest:

* Adapters for continual fine-tuning (Khan et al. 2022): no text of the paper could be found. The abstract of "Lifelong
  Language Learning with Adapter based Transformers" (ACML workshop 2022), which it is likely to be, describes an
  adapter for each task in a pre-trained Transformer, without replay. That is `dap_adapter`; nothing more was read.
* The abstracts of ten fields of physics of Cossu et al. 2022, which are not at hand, and their linear evaluation, which
  fine-tunes the head alone. Their protocol is a recipe, and was run on documentation.
* SQuAD and BioASQ, the questions of the paper on Forget-Me-Not, which are not at hand. It was run on questions made
  from books and clinical studies, with answers that stand in the text."""
IN_WEIGHTS = {"distance", "layers", "line", "movement"}
MERGES = {"mean": ["frontier-causal.md", "frontier-masked.md"]}
"""Merging method → its pages beside merging.md, which has all."""
ANALYSIS_RESULTS = {
    **{name: ["analyses.md"] for name in ("codelength", "distance", "layers", "line", "movement", "ranks")},
    "activations": ["analyses.md", "scenarios.md"],
    "importance": ["six-domains-importance.md"],
}
OTHER_ANALYSES = [
    System(
        "Repair: the largest part of an update within a budget",
        "everlearn repair runs/first --budget 0.02 -o repaired",
        "tests/cli/test_merge.py",
        ["budget.md"],
    ),
    System(
        "What two checkpoints learnt and forgot",
        "everlearn diff base tuned --text mine.jsonl",
        "tests/cli/test_evaluate.py",
        [],
        "the tour of a new user shows one ([walk](results/walk.md))",
    ),
    System(
        "Content tokens: perplexity without the most frequent types",
        "everlearn run recipe.yaml evaluation.content=100",
        "tests/unit/test_eval_metrics.py",
        ["scenarios.md"],
    ),
    System(
        "Search of learning rate and strength",
        "everlearn tune recipe.yaml --trials 8",
        "tests/unit/test_tuning.py",
        ["real-models.md"],
    ),
    System(
        "Verdicts on sentences of papers",
        "everlearn bench six-domains --show --claims claims.md",
        "tests/unit/test_claims.py",
        ["../claims.md"],
    ),
]


def analyses() -> list[System]:
    """Return the analyses of a run, the merging methods, and what else looks at finished models."""
    with plugins.hidden():
        run_analyses = [
            System(
                (inspect.getdoc(entry.analyse) or "").splitlines()[0].removeprefix("Show ").rstrip("."),
                f"everlearn analyse {name} runs/first",
                "tests/unit/test_where_it_forgets.py" if name in IN_WEIGHTS else "tests/unit/test_analysis.py",
                ANALYSIS_RESULTS.get(name, ()),
            )
            for name, entry in sorted(ANALYSES.items())
        ]
        merges = [
            System(
                f"Merging: {method.title}",
                f"everlearn merge runs/first --method {name} -o merged",
                "tests/unit/test_merging.py",
                [*MERGES.get(name, ()), "merging.md"],
            )
            for name, method in MERGE_METHODS.items()
        ]
    return [*run_analyses, *merges, *OTHER_ANALYSES]


def page() -> str:
    """Return the page."""
    groups = {
        "Methods and their variants": methods(),
        "Benchmarks": BENCHMARKS,
        "Studies": STUDIES,
        "Analyses": analyses(),
    }
    every = [system for systems in groups.values() for system in systems]
    scored = sum(bool(system.results) for system in every)
    return "\n".join(
        [
            "# Systems",
            "",
            INTRODUCTION,
            "",
            f"{len(every)} systems, {scored} of them with numbers in a committed result.",
            *(f"\n## {title}\n\n{table(systems)}" for title, systems in groups.items()),
            f"\n{NOT_HERE}",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
