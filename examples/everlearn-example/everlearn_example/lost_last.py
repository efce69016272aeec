"""What the last stage alone took away."""

from everlearn.evaluation import Quantity, register_quantity

register_quantity(
    Quantity(
        key="lost_last",
        title="Lost in the last stage",
        higher_is_better=False,
        better="lost less in the last stage",
        worse="lost more in the last stage",
        meaning="How much worse the model became at an earlier domain in the last stage alone. Less is better.",
        applies=lambda stage, last: stage is not None and 1 <= stage < last,
        formula=lambda scores, stage, last: scores[last - 1] - scores[last],
    )
)
