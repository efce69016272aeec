"""The suite `code`: a causal model is trained on code; how much of its general abilities does it forget meanwhile?

The setting of MIGU (arXiv 2406.17245, section 4.3; after Biderman et al., arXiv 2405.09673): one domain, many passes,
HumanEval on one side, HellaSwag, WinoGrande and ARC-challenge on the other, evaluated repeatedly during training.
"""

from everlearn_bench.suites.code.corpus import LIBRARIES, build
from everlearn_bench.suites.code.files import FILES, VARIABLE, data_folder, find

__all__ = ["FILES", "LIBRARIES", "VARIABLE", "build", "data_folder", "find"]
