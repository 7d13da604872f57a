"""The same digits on every x86 processor, for trainings small enough to run anywhere.

Libraries choose kernels by what the processor can do, and each adds in its own order. Training magnifies the difference: a seed
would give other figures on another machine. The plainest kernels are the same everywhere. They take about 1.4 times as long, and
need one thread, which tiny models want anyway.
"""

import os
import sys

PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",  # on Intel's processors
    "MKL_CBWR": "COMPATIBLE",  # on all others, too
}


def use_plain_kernels() -> bool:
    """Set what torch reads when it is imported, in place of what the user set; return whether it was in time."""
    if "torch" not in sys.modules:
        os.environ |= PLAIN
    return has_plain_kernels()


def has_plain_kernels() -> bool:
    """Return whether this process computes by the plainest kernels, as far as its environment says."""
    return all(os.environ.get(name) == value for name, value in PLAIN.items())
