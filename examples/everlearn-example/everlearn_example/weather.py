"""A suite of two invented domains."""

import random
import tempfile
from pathlib import Path

from everlearn_bench.suites import Suite, register_suite

WORDS = {"rain": "grey wet cold drops fall on the roof", "sun": "warm light shines over the dry yellow field"}


@register_suite
class Weather(Suite):
    """Sentences about the weather, made on demand."""

    name = "weather"
    recipe_file = "weather.yaml"
    orders = {0: ("rain", "sun"), 1: ("sun", "rain")}

    class Config(Suite.Config):
        sentences: int = 200
        """Sentences of each domain."""

    def locate(self, inside):
        """Return the file of a domain; it is written when it is first asked for."""
        path = Path(tempfile.gettempdir()) / f"everlearn-weather-{self.config.sentences}" / inside
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            draw, words = random.Random(inside), WORDS[path.stem].split()
            lines = (" ".join(draw.choices(words, k=40)) + "\n" for _ in range(self.config.sentences))
            path.write_text("".join(lines), encoding="utf-8")
        return path
