"""Seeds, lengths, settings and ids: what every workload kind stands on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.errors import UnknownNameError, WorkloadError
from specbench.workloads.base import (
    Conversation,
    WorkloadSettings,
    build_workload,
    draw_length,
    stable_seed,
)

IMPORT_AND_LIST = """
import sys
import specbench.workloads.chat80, specbench.workloads.mt_bench, specbench.workloads.prompts
import specbench.workloads.random_tokens, specbench.workloads.tokenizer
from specbench.workloads.base import WorkloadSettings, build_workload
from specbench.workloads.tokenizer import Tokenizer
heavy = ("torch", "transformers", "tokenizers", "numpy", "jinja2")
print([name for name in heavy if name in sys.modules])
for kind in ("chat80", "random_tokens"):
    workload = build_workload(WorkloadSettings(kind), vocab_size=512, tokenizer=Tokenizer.byte_level(512))
    assert workload.conversations()
print([name for name in ("torch", "transformers", "tokenizers") if name in sys.modules])
"""


def conversation(**changes: Any) -> Conversation:
    """A conversation of two turns."""
    values: dict[str, Any] = {
        "conversation_id": "c80-001",
        "category": "writing",
        "turns": ("one", "two"),
        "prompt_token_ids": None,
        "output_len": None,
        "seed": 0,
    }
    return Conversation(**{**values, **changes})


def test_seeds_are_the_same_on_every_machine() -> None:
    assert stable_seed(0, "c80-001", 0) == 6273852837792764999
    assert stable_seed("a", 1) == 2201408217121697680
    assert conversation(seed=0).request_seed(1, 7) == 8392067571765795335


def test_a_request_seed_depends_on_both_seeds_the_conversation_and_the_turn() -> None:
    seeds = {
        conversation().request_seed(0),
        conversation().request_seed(1),
        conversation(seed=1).request_seed(0),
        conversation(conversation_id="c80-002").request_seed(0),
        conversation().request_seed(0, sampling_seed=1),
    }
    assert len(seeds) == 5


@given(st.lists(st.one_of(st.integers(), st.text()), max_size=5))
def test_seeds_fit_a_signed_64_bit_integer(parts: list[int | str]) -> None:
    assert 0 <= stable_seed(*parts) < 2**63


def test_seed_parts_do_not_run_together() -> None:
    assert len({stable_seed("a", "b"), stable_seed("ab"), stable_seed("a,b"), stable_seed("a", "", "b")}) == 4
    assert stable_seed(1) != stable_seed("1")


def test_lengths_are_drawn_uniformly_with_both_ends() -> None:
    drawn = [draw_length((5, 8), "request", index) for index in range(4000)]
    counts = [drawn.count(length) for length in (5, 6, 7, 8)]
    assert sum(counts) == 4000
    assert min(counts) > 900
    assert draw_length(7, "request", 0) == 7


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"num_requests": 0}, "workload.num_requests"),
        ({"num_requests": 10**9}, "workload.num_requests"),
        ({"turns": 0}, "workload.turns"),
        ({"isl": 0}, "workload.isl"),
        ({"osl": (64, 32)}, "workload.osl"),
        ({"isl": (1, 10**12)}, "workload.isl"),
        ({"categories": ()}, "workload.categories"),
        ({"system_prompt": "half \ud800"}, "workload.system_prompt"),
    ],
)
def test_settings_out_of_range_name_their_key(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        WorkloadSettings("chat80", **changes)
    assert caught.value.where == where
    str(caught.value).encode("utf-8")


def test_request_ids_name_the_turn() -> None:
    assert conversation().request_id(1) == "c80-001/t1"


def test_a_conversation_is_text_or_ids_and_not_both() -> None:
    with pytest.raises(ValueError, match="either"):
        conversation(prompt_token_ids=(1, 2))
    with pytest.raises(ValueError, match="either"):
        conversation(turns=None)
    assert conversation(turns=None, prompt_token_ids=(1, 2)).num_turns == 1


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chat80'") as caught:
        build_workload(WorkloadSettings("chat08"), vocab_size=512, tokenizer=None)
    assert caught.value.where == "workload.kind"


@pytest.mark.parametrize(("kind", "path"), [("chat80", None), ("mt_bench", None), ("prompts", "x.jsonl")])
def test_text_without_a_tokenizer_says_what_works_instead(kind: str, path: str | None) -> None:
    with pytest.raises(WorkloadError, match="random_tokens"):
        build_workload(WorkloadSettings(kind, path=path), vocab_size=512, tokenizer=None)


def test_importing_costs_nothing_heavy_and_running_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_AND_LIST], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
