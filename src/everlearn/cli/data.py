"""``everlearn data``: inspect the corpora of a recipe, and find text where it should not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everlearn import wording
from everlearn.cli.common import AsJson, Overrides, RecipeFile, empty_table, file_table, show, telling

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from everlearn.commands.data_report import CorpusSurvey, Survey

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 200
"""Characters of a sample that are shown."""


def command(recipe: RecipeFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Inspect text before training on it: sizes, lengths, samples, duplicates, and leaks of test data."""
    from everlearn.commands.data_report import survey
    from everlearn.config.recipe import load

    reporter = telling()
    report = survey(load(recipe, overrides or ()), reporter=reporter)
    show(report.to_json(), as_json, lambda: _rendered(report))


def _rendered(survey: Survey) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for corpus in survey.corpora:
        parts += [*_corpus(corpus, survey.block_size), Text("")]
    files = {corpus.name: corpus.files for corpus in survey.corpora}
    if any(files.values()):
        parts += [file_table(files), Text("")]
    if len(survey.corpora) > 1:
        parts += [_shared(survey), Text("")]
    if survey.findings:
        parts.append(Text("To look at", style="bold"))
        parts += [Text(f"  {number}. {sentence}") for number, sentence in enumerate(survey.findings, 1)]
    else:
        parts.append(Text("No evaluation text was found in training text, and no two corpora share text."))
    scope = survey.leaks.scope()
    parts.append(Text(f"{scope[0].upper()}{scope[1:]}.", style="dim"))
    return Group(*parts)


def _corpus(corpus: CorpusSurvey, block_size: int) -> list[Text]:
    from rich.text import Text

    about = "about " if corpus.about else ""
    first = "" if corpus.whole else "the first "
    low, _, median, high, longest = corpus.lengths or [0] * 5
    bars = "".join(
        BARS[-(-count * (len(BARS) - 1) // max(number for _, number in corpus.histogram))]
        for _, count in corpus.histogram
    )
    share = corpus.longer / max(corpus.documents, 1)
    cut = "cut" if corpus.examples else "continued in the next row"
    lines = [
        f"{first}{wording.count(corpus.documents, 'document')}, {wording.size(corpus.bytes)}, "
        f"{about}{wording.count(corpus.tokens, 'token')}, "
        f"{corpus.bytes_per_token:.2f} bytes each",
        f"lengths {bars} {about}{low:,} to {longest:,} tokens, half of them up to {median:,}, 95 % up to {high:,}",
        f"{corpus.longer:,} ({wording.percent(share)}) {wording.be(corpus.longer)} longer than a row of {block_size} "
        f"and {cut}",
        f"{corpus.held_out:,} more {wording.be(corpus.held_out)} held out, by {corpus.held_out_by}"
        if corpus.held_out
        else "nothing is held out",
        f"{corpus.duplicates:,} {wording.be(corpus.duplicates)} the same as an earlier one, "
        f"{corpus.near_duplicates:,} nearly the same",
    ]
    if corpus.skipped:
        rows = wording.count(corpus.skipped, "row")
        lines.append(f"{rows} without text {wording.be(corpus.skipped)} skipped")
    title = Text.assemble((corpus.name, "bold"), (f"  {corpus.path}", "dim"))
    samples = [Text(f"  “{shortened(sample)}”", style="italic") for sample in corpus.samples]
    return [title, *(Text(f"  {line}") for line in lines), *samples]


def shortened(text: str) -> str:
    """Return the beginning of a text on one line, with visible line ends and tabs."""
    shown = text[:WIDTH].replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "→")
    shown = "".join(letter if letter.isprintable() else "�" for letter in shown)
    return shown + ("…" if len(text) > WIDTH else "")


def _shared(survey: Survey) -> RenderableType:
    shares = {(one, other): share for one, other, share in survey.shared}
    names = [corpus.name for corpus in survey.corpora]
    table = empty_table("Share of the 13-grams of the row that occur in the column too", ("",), names)
    for one in names:
        # A domain that continues another shares its text on purpose.
        cells = (shares.get((one, other)) for other in names)
        table.add_row(one, *("" if share is None else wording.percent(share) for share in cells))
    return table
