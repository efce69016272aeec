"""What users do wrong, and what each gets: a table of cases, and one test that makes every mistake.

A case is written as data in ``tests/mistakes/cases/<subject>.py``; the first line of that file's docstring is the
heading of the subject on the page, and its list ``CASES`` is found without being registered:

```python
\"\"\"Data files.\"\"\"

from mistakes import Case, corpus, domain, recipe

CASES = [
    Case("names a corpus that is not there", domain(path="aa.jsonl"), says=("aa.jsonl", "Did you mean 'a.jsonl'?")),
    Case("calls a verb that there is not", command=("plna", "recipe.yaml"), says=("plna", "plan")),
    Case("writes ~ in a path", recipe("run.folder", "~/x"), command=("validate", "recipe.yaml"), code=0,
         works="the folder in the home folder", check=lambda project, outcome: …),
]
```

* ``name``: what the user does, as the end of "The user …"; plain, short, and of no other case.
* ``spoil``: a function of a :class:`cli_project.Project`: changes ``project.recipe`` (written to ``recipe.yaml`` before
  the command) or files in ``project.folder`` (`a.jsonl`, `b.jsonl`, `c.jsonl`, `general.jsonl`, `train.jsonl`,
  `test.jsonl`). :func:`recipe`, :func:`domain`, :func:`group`, :func:`without`, :func:`file`, :func:`corpus`,
  :func:`jsonl`, :func:`text` (the recipe's own text), :func:`run` (a finished run in `runs/first`), :func:`patch` and
  :func:`both` (several) make most of them.
* ``command``: what is typed behind `everlearn`; ``run recipe.yaml`` when left out. ``MODELS`` in a word stands for the
  folder of tiny models (roberta, llama, t5), ``HOME`` for the home folder. `validate recipe.yaml --json` may be cheaper
  than `run`.
* ``says``: parts of the sentence. With code 2 that is the one line of standard error that begins with ``Error: `` (of
  `validate --json`: the detail of the first check that failed); with code 0, any line of either stream: a warning.
* ``works``: where it is no mistake, in words, what happens; ``check(project, outcome)`` must then hold.
* ``writes``: patterns of what the command may leave beside the cache; nothing when left out. Anything else that appears
  or changes is a failure, also one folder above the project and in the home folder.

Make it cheap: most mistakes are found before a model is loaded.
"""

from mistakes.case import (
    Case,
    both,
    corpus,
    domain,
    file,
    general,
    group,
    jsonl,
    patch,
    recipe,
    run,
    text,
    without,
)

__all__ = [
    "Case",
    "both",
    "corpus",
    "domain",
    "file",
    "general",
    "group",
    "jsonl",
    "patch",
    "recipe",
    "run",
    "text",
    "without",
]
