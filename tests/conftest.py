"""Settings every test runs under, and the fixture that brings the real model."""

from __future__ import annotations

import os
from pathlib import Path

# Read by torch, tokenizers and the hub client when they load, so they are set before any test module imports them.
# One thread a process: workers of the test run share the cores, and one thread keeps sums in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Weights then come from the package index everywhere, not from a hub on some machines.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import HealthCheck, settings

from specbench.errors import SpecbenchError

REAL_MODEL = "smollm2-135m"
PULL_TIMEOUT_S = 900

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True)
settings.register_profile("fuzz", settings.get_profile("dev"), max_examples=3000)


def is_ci() -> bool:
    """True where a missing model is a failure and random tests repeat themselves exactly."""
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if is_ci() else "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the model is marked, so that ``-m 'not real_model'`` needs no download."""
    for item in items:
        if "smollm2_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_model)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip gpu tests where there is no GPU; torch is loaded only to answer that."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The directory of SmolLM2-135M-Instruct, as ``specbench pull smollm2-135m`` leaves it in the cache."""
    from filelock import FileLock

    from specbench.downloads import cache_directory
    from specbench.engine.models.pull import pull_model

    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        # Parallel test workers ask at once; the second finds it done.
        with FileLock(cache_directory() / "tests.lock", timeout=PULL_TIMEOUT_S):
            return pull_model(REAL_MODEL)
    except (SpecbenchError, OSError) as error:
        reason = f"{REAL_MODEL} could not be fetched: {error}"
        if is_ci():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
