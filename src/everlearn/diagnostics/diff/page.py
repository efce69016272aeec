"""Write the page of a comparison of two models: one file that opens offline."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from everlearn.comparison.formatting import fixed
from everlearn.diagnostics.diff.changes import End, PassageChange, Piece
from everlearn.diagnostics.diff.result import ComparedModels
from everlearn.diagnostics.diff.texts import TextDifference
from everlearn.diagnostics.diff.words import layer_table, quoted, sentence, task_table, text_table, word_table
from everlearn.files import write_text
from everlearn.model.weight_movement import Moved, together
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.heat import Heat, Shade
from everlearn.report.figures.weight_movement import layer_label
from everlearn.report.html import render
from everlearn.report.tables import Table
from everlearn.version import __version__

_STEPS, _BITS_A_STEP = 7, 2.0
"""Number of shades of a token, and the bits of each step."""
_CLEAR = 2.0
"""Change in bits from which a token is underlined."""


@dataclass(frozen=True)
class _Half:
    """The largest losses in a text, or the largest gains.

    Attributes:
        title: title of the part.
        end: the changes.
        passages: passages with their tokens as (text, shade before, shade after, class, explanation).
        words: table of vocabulary tokens; None if there are none.
    """

    title: str
    end: End
    passages: list[tuple[PassageChange, list[tuple[str, int, int, str, str]]]]
    words: Table | None

    @property
    def shown(self) -> bool:
        """Return whether there is anything to show."""
        return bool(self.passages)


def write(comparison: ComparedModels, path: Path) -> Path:
    """Write the page to a file, atomically."""
    write_text(path, page(comparison))
    return path


def page(comparison: ComparedModels) -> str:
    """Return the page as text; it contains no local path."""
    return render(
        "diff.html.jinja",
        title=f"{comparison.after}, compared with {comparison.before}",
        version=__version__,
        diff=comparison,
        verdict=sentence(comparison),
        texts=text_table(comparison) if comparison.texts else None,
        dots=_dots(comparison),
        sections=[(text, _halves(comparison, text)) for text in comparison.texts],
        tasks=task_table(comparison) if comparison.tasks else None,
        layers=layer_table(comparison) if comparison.layers else None,
        heat=_heat(comparison.layers) if comparison.layers else [],
        quoted=quoted,
        bits=lambda value: fixed(value, 1),
        fixed=fixed,
        steps=[(step, round(step * _BITS_A_STEP)) for step in range(1, _STEPS + 1)],
    )


def _dots(comparison: ComparedModels) -> list[Plate]:
    """Draw the differences of several texts as dots; a single text is shown only in the table."""
    if len(comparison.texts) < 2:
        return []
    caption = "Right of zero: worse than before. Lines: 95 % intervals."
    estimates = [text.difference for text in comparison.texts]
    return draw(
        "dots", Dots("bits per byte, after − before", [text.name for text in comparison.texts], [estimates], caption)
    )


def _halves(comparison: ComparedModels, text: TextDifference) -> list[_Half]:
    """Return the largest losses and gains, beginning with those that decide the verdict."""
    halves = [
        _Half(
            f"What {word} most",
            end,
            [(passage, [_shaded(piece) for piece in dropwhile(_is_empty, passage.pieces)]) for passage in end.passages],
            word_table(f"Tokens of the vocabulary that {word} most", end.words) if end.words else None,
        )
        for word, end in (("lost", text.lost), ("gained", text.gained))
    ]
    return halves[::-1] if comparison.verdicts[text.name] == "learnt" else halves


def _is_empty(piece: Piece) -> bool:
    return not piece.text.strip()


def _shaded(piece: Piece) -> tuple[str, int, int, str, str]:
    if piece.before is None or piece.after is None:
        return piece.text, 0, 0, "", ""
    change = piece.after - piece.before
    kind = "worse" if change >= _CLEAR else "better" if change <= -_CLEAR else ""
    about = f"{fixed(piece.before, 1)} → {fixed(piece.after, 1)} bits"
    return piece.text, _step(piece.before), _step(piece.after), kind, about


def _step(bits: float) -> int:
    return min(_STEPS, int(bits / _BITS_A_STEP))


def _heat(parts: list[Moved]) -> list[Plate]:
    """Draw layers × their parts as a heat map."""
    columns = list(dict.fromkeys(part.part for part in parts if part.part != part.layer))
    cells = {(part.layer, part.part): part for part in parts}

    def shade(part: Moved | None) -> Shade:
        if part is None or part.relative is None:
            return Shade(None)
        return Shade(part.relative, f"{fixed(100 * part.relative, 2)} %")

    rows = [
        (layer_label(layer), [shade(alone), *(shade(cells.get((layer, column))) for column in columns)])
        for layer, alone in together(parts).items()
    ]
    return draw("heat", Heat("How far each layer moved, ‖W′ − W‖ / ‖W‖", "layer", ["whole layer", *columns], rows))
