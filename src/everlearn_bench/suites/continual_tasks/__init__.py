"""The suites `standard-cl` and `long-sequence`: classification tasks as text to text, learnt one after another.

The streams of O-LoRA (arXiv 2310.14152) and MIGU (arXiv 2406.17245): four tasks in orders 1 to 3, fifteen in orders 4
to 6. Every task is a domain (prompts with answers) and an end task on its own test part.
"""

from everlearn_bench.suites.continual_tasks.files import VARIABLE, task_file
from everlearn_bench.suites.continual_tasks.prompts import prompt
from everlearn_bench.suites.continual_tasks.tasks import TASKS, TextTask

__all__ = ["TASKS", "VARIABLE", "TextTask", "prompt", "task_file"]
