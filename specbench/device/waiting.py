"""How threads of a CPU kernel wait for one another. No torch here: it must be settled before torch is loaded."""

from __future__ import annotations

import os
import sys

SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = "300"
"""Some microseconds. See :func:`prefer_short_spins`."""


def prefer_short_spins() -> bool:
    """Let a kernel's threads spin briefly at a barrier, then sleep; True when this takes effect.

    GNU OpenMP, which PyTorch's Linux wheels bring, spins for a millisecond or so by default. A step has hundreds of
    barriers. When one core is taken away for a moment, by another program or by the host of a virtual machine, the
    thread that waits burns its own core meanwhile, which the scheduler then holds against it: a little other load
    makes steps ten times as long (docs/experiments.md). A choice of the user's, or a torch that is loaded already,
    stays as it is.
    """
    if SPIN_VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ or "torch" in sys.modules:
        return False
    os.environ[SPIN_VARIABLE] = SPIN_COUNT
    return True
