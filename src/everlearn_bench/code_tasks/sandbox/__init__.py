"""Runs programs that nobody has read: each in a process of its own, from which nothing can be reached.

What a program may do is a list, and everything else is refused by the kernel
(:mod:`everlearn_bench.code_tasks.sandbox.calls`); what it may read is Python's standard library (Landlock); how much it
may take is limited (rlimits). All of it works without privileges, as root, and inside a container. Where the kernel
lacks any of it nothing is run.
"""

from everlearn_bench.code_tasks.sandbox.calls import SandboxError
from everlearn_bench.code_tasks.sandbox.running import ALLOWANCE, Allowance, Verdict, check_available, run_programs

__all__ = ["ALLOWANCE", "Allowance", "SandboxError", "Verdict", "check_available", "run_programs"]
