"""The suite `six-domains`: the six domains of DAS (arXiv 2302.03241) in its five orders, with their end tasks.

Domains are learnt from proxy corpora (:data:`PROXIES`) or from your own text; the end tasks are those of the paper,
example for example.
"""

from everlearn_bench.suites.six_domains.cache import VARIABLE, cache_folder, data_folder
from everlearn_bench.suites.six_domains.corpora import PROXIES, general_file, proxy_file
from everlearn_bench.suites.six_domains.suite import locate
from everlearn_bench.suites.six_domains.tasks import CEILING, SIZES, TASKS, task_file

__all__ = [
    "CEILING",
    "PROXIES",
    "SIZES",
    "TASKS",
    "VARIABLE",
    "cache_folder",
    "data_folder",
    "general_file",
    "locate",
    "proxy_file",
    "task_file",
]
