"""Run untrusted programs, each in its own process without access to files, network or other processes.

A program may make only the system calls of a list (seccomp, :mod:`everlearn_bench.code_tasks.sandbox.calls`), may read
only Python's standard library (Landlock), and has limits of time and memory (rlimits). This works without privileges,
as root, and inside a container. If the kernel lacks one of these, nothing is run.
"""

from everlearn_bench.code_tasks.sandbox.calls import SandboxError
from everlearn_bench.code_tasks.sandbox.running import ALLOWANCE, Allowance, Verdict, check_available, run_programs

__all__ = ["ALLOWANCE", "Allowance", "SandboxError", "Verdict", "check_available", "run_programs"]
