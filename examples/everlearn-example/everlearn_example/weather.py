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
    orders = {0: ("rain", "sun"), 1: ("sun", "rain")}
    tasks = {}

    def locate(self, inside):
        """Return the file of a domain; it is written when it is first asked for."""
        path = Path(tempfile.gettempdir()) / "everlearn-weather" / inside
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            draw, words = random.Random(inside), WORDS[path.stem].split()
            path.write_text("".join(" ".join(draw.choices(words, k=40)) + "\n" for _ in range(200)), encoding="utf-8")
        return path

    def recipe(self, order, *, settings, data, method, seed, name, folder):
        """Return the recipe of one run."""
        domains = self.orders[order] if isinstance(order, int) else order
        return {
            "model": settings.model or "suite:docs/base",
            "method": method,
            "domains": [{"name": each, "path": f"suite:weather/{each}.txt", "validation": 0.2} for each in domains],
            "data": {"block_size": settings.block_size or 32},
            "train": {"max_steps": settings.steps or 20, **settings.train},
            "evaluation": {"blocks": settings.blocks or 16},
            "run": {"name": name, "seed": seed, "folder": str(folder)},
        }
