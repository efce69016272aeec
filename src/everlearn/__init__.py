"""everlearn: teach a language model one domain after another, and show that it forgot nothing.

The names below are imported when they are first used, so that ``import everlearn`` and the command line stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from everlearn.version import __version__

if TYPE_CHECKING:
    from everlearn.commands.export import export
    from everlearn.commands.merge import merge
    from everlearn.config.recipe import Recipe
    from everlearn.data.corpus import Corpus, Domain
    from everlearn.diagnostics.diff.comparing import diff
    from everlearn.diagnostics.repair import repair
    from everlearn.errors import EverlearnError
    from everlearn.evaluation.results import Results
    from everlearn.learner import ContinualLearner
    from everlearn.methods.adapters.adapter import Adapter
    from everlearn.methods.adapters.clora import CLoRA
    from everlearn.methods.adapters.corda import CorDA
    from everlearn.methods.adapters.inc_lora import IncLoRA
    from everlearn.methods.adapters.lora import LoRA
    from everlearn.methods.adapters.lora_null import LoRANull
    from everlearn.methods.adapters.moe_lora import MoELoRA
    from everlearn.methods.adapters.o_lora import OLoRA
    from everlearn.methods.averaging.wise_ft import WiSEFT
    from everlearn.methods.base import Mask, Memory, Method, MethodConfig, Needs, Stage, register
    from everlearn.methods.composition.ensemble import DomainEnsemble
    from everlearn.methods.composition.k_adapter import KAdapter
    from everlearn.methods.composition.mocl import MoCL
    from everlearn.methods.composition.sapt_lora import SAPTLoRA
    from everlearn.methods.composition.selective_init import SelectiveInit
    from everlearn.methods.composition.side_tuning import SideTuning
    from everlearn.methods.distillation.kd import KD
    from everlearn.methods.distillation.lwf import LwF
    from everlearn.methods.gates.bcl import BCL
    from everlearn.methods.gates.classic import CLASSIC
    from everlearn.methods.gates.cpt import CPT
    from everlearn.methods.gates.hat import HAT
    from everlearn.methods.gates.hat_adapter import HATAdapter
    from everlearn.methods.growth.elle import ELLE
    from everlearn.methods.growth.lifelong_moe import LifelongMoE
    from everlearn.methods.masks.das import DAS
    from everlearn.methods.masks.migu import MIGU
    from everlearn.methods.masks.mofo import MoFO
    from everlearn.methods.penalties.budget import Budget
    from everlearn.methods.penalties.ewc import EWC
    from everlearn.methods.penalties.forget_me_not import ForgetMeNot
    from everlearn.methods.penalties.l2 import L2
    from everlearn.methods.penalties.mas import MAS
    from everlearn.methods.penalties.multi_task_adaptation import MultiTaskAdaptation
    from everlearn.methods.penalties.si import SI
    from everlearn.methods.prompts.dap_prompt import DAPPrompt
    from everlearn.methods.prompts.lfpt5 import LFPT5
    from everlearn.methods.prompts.progressive_prompts import ProgressivePrompts
    from everlearn.methods.rehearsal.derpp import DERpp
    from everlearn.methods.rehearsal.forever import Forever
    from everlearn.methods.rehearsal.replay import Replay
    from everlearn.methods.sequential import Sequential
    from everlearn.methods.tricks.mixout import Mixout
    from everlearn.methods.tricks.recadam import RecAdam
    from everlearn.methods.tricks.reptile import Reptile
    from everlearn.methods.tricks.siatl import SiATL
    from everlearn.methods.tricks.stream_schedule import StreamSchedule
    from everlearn.methods.tricks.ulmfit import ULMFiT
    from everlearn.model.vocabulary import extend_vocabulary
    from everlearn.protecting import protect
    from everlearn.report.run_results import RunResults
    from everlearn.tasks.labelled import EndTask

_WHERE = {
    "everlearn.diagnostics.diff.comparing": ("diff",),
    "everlearn.diagnostics.repair": ("repair",),
    "everlearn.data.corpus": ("Corpus", "Domain"),
    "everlearn.tasks.labelled": ("EndTask",),
    "everlearn.errors": ("EverlearnError",),
    "everlearn.evaluation.results": ("Results",),
    "everlearn.learner": ("ContinualLearner",),
    "everlearn.methods.base": ("Mask", "Memory", "Method", "MethodConfig", "Needs", "Stage", "register"),
    "everlearn.methods.averaging.wise_ft": ("WiSEFT",),
    "everlearn.methods.masks.das": ("DAS",),
    "everlearn.methods.penalties.budget": ("Budget",),
    "everlearn.methods.penalties.ewc": ("EWC",),
    "everlearn.methods.penalties.l2": ("L2",),
    "everlearn.methods.penalties.si": ("SI",),
    "everlearn.methods.penalties.mas": ("MAS",),
    "everlearn.methods.penalties.forget_me_not": ("ForgetMeNot",),
    "everlearn.methods.penalties.multi_task_adaptation": ("MultiTaskAdaptation",),
    "everlearn.methods.adapters.clora": ("CLoRA",),
    "everlearn.methods.adapters.corda": ("CorDA",),
    "everlearn.methods.adapters.inc_lora": ("IncLoRA",),
    "everlearn.methods.adapters.lora": ("LoRA",),
    "everlearn.methods.adapters.lora_null": ("LoRANull",),
    "everlearn.methods.adapters.moe_lora": ("MoELoRA",),
    "everlearn.methods.adapters.o_lora": ("OLoRA",),
    "everlearn.methods.masks.migu": ("MIGU",),
    "everlearn.methods.masks.mofo": ("MoFO",),
    "everlearn.methods.rehearsal.replay": ("Replay",),
    "everlearn.methods.adapters.adapter": ("Adapter",),
    "everlearn.methods.distillation.kd": ("KD",),
    "everlearn.methods.growth.elle": ("ELLE",),
    "everlearn.methods.growth.lifelong_moe": ("LifelongMoE",),
    "everlearn.methods.rehearsal.derpp": ("DERpp",),
    "everlearn.methods.rehearsal.forever": ("Forever",),
    "everlearn.methods.gates.cpt": ("CPT",),
    "everlearn.methods.gates.hat_adapter": ("HATAdapter",),
    "everlearn.methods.gates.bcl": ("BCL",),
    "everlearn.methods.gates.classic": ("CLASSIC",),
    "everlearn.methods.gates.hat": ("HAT",),
    "everlearn.methods.prompts.dap_prompt": ("DAPPrompt",),
    "everlearn.methods.prompts.progressive_prompts": ("ProgressivePrompts",),
    "everlearn.methods.composition.ensemble": ("DomainEnsemble",),
    "everlearn.methods.composition.k_adapter": ("KAdapter",),
    "everlearn.methods.composition.mocl": ("MoCL",),
    "everlearn.methods.composition.sapt_lora": ("SAPTLoRA",),
    "everlearn.methods.composition.selective_init": ("SelectiveInit",),
    "everlearn.methods.composition.side_tuning": ("SideTuning",),
    "everlearn.methods.prompts.lfpt5": ("LFPT5",),
    "everlearn.methods.sequential": ("Sequential",),
    "everlearn.methods.distillation.lwf": ("LwF",),
    "everlearn.methods.tricks.mixout": ("Mixout",),
    "everlearn.methods.tricks.recadam": ("RecAdam",),
    "everlearn.methods.tricks.reptile": ("Reptile",),
    "everlearn.methods.tricks.siatl": ("SiATL",),
    "everlearn.methods.tricks.stream_schedule": ("StreamSchedule",),
    "everlearn.methods.tricks.ulmfit": ("ULMFiT",),
    "everlearn.model.vocabulary": ("extend_vocabulary",),
    "everlearn.config.recipe": ("Recipe",),
    "everlearn.protecting": ("protect",),
    "everlearn.report.run_results": ("RunResults",),
    "everlearn.commands.export": ("export",),
    "everlearn.commands.merge": ("merge",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "BCL",
    "CLASSIC",
    "CPT",
    "DAS",
    "ELLE",
    "EWC",
    "HAT",
    "KD",
    "L2",
    "LFPT5",
    "MAS",
    "MIGU",
    "SI",
    "Adapter",
    "Budget",
    "CLoRA",
    "ContinualLearner",
    "CorDA",
    "Corpus",
    "DAPPrompt",
    "DERpp",
    "Domain",
    "DomainEnsemble",
    "EndTask",
    "EverlearnError",
    "Forever",
    "ForgetMeNot",
    "HATAdapter",
    "IncLoRA",
    "KAdapter",
    "LifelongMoE",
    "LoRA",
    "LoRANull",
    "LwF",
    "Mask",
    "Memory",
    "Method",
    "MethodConfig",
    "Mixout",
    "MoCL",
    "MoELoRA",
    "MoFO",
    "MultiTaskAdaptation",
    "Needs",
    "OLoRA",
    "ProgressivePrompts",
    "RecAdam",
    "Recipe",
    "Replay",
    "Reptile",
    "Results",
    "RunResults",
    "SAPTLoRA",
    "SelectiveInit",
    "Sequential",
    "SiATL",
    "SideTuning",
    "Stage",
    "StreamSchedule",
    "ULMFiT",
    "WiSEFT",
    "__version__",
    "diff",
    "export",
    "extend_vocabulary",
    "merge",
    "protect",
    "register",
    "repair",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'everlearn' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
