import test_distributed as t
OWN = ("mofo", "clora", "corda", "lora_null")
for key in [k for k in t.CASES if k.split(" ", 1)[1] not in OWN]:
    del t.CASES[key]
from test_distributed import alone, known, runs, test_two_processes_give_what_one_gives  # noqa
pytestmark = t.pytestmark

import pytest
test_two_processes_give_what_one_gives.pytestmark = [pytest.mark.parametrize("case", list(t.CASES))]
