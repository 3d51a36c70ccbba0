"""In what two arms differ, what that may do to the output, and which design can compare them."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.engine.models.presets import TINY
from specbench.engine.optimizations import base as toggles
from specbench.engine.optimizations.base import Exactness, Toggle, Variant
from specbench.errors import ScenarioError
from specbench.records import Difference
from specbench.scenario import differences
from specbench.scenario.designs import choose_design
from specbench.scenario.differences import (
    SAME_WORK,
    find_differences,
    list_following,
    reason_of,
    refuse_unlike,
    weakest,
)
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Scenario
from specbench.scenario.sweep_conflicts import swept_keys

WORK = {"kind": "random_tokens", "isl": 16, "osl": 16, "concurrency": 2}


def _scenario(**sections: Any) -> Scenario:
    merged = {"name": "x", "model": "tiny", "workload": WORK, **sections}
    return resolve(Scenario.model_validate(merged), TINY.config, available_memory=lambda _: None).scenario


def _found(**sections: Any) -> dict[str, Difference]:
    return {item.key: item for item in find_differences(_scenario(), _scenario(**sections))}


def test_nothing_differs_from_itself() -> None:
    assert find_differences(_scenario(), _scenario()) == ()
    assert weakest(()) == "bit-identical"


def test_a_toggle_is_as_exact_as_it_declares() -> None:
    found = _found(optimizations={"sampling_params": "refill"})
    assert found == {
        "optimizations.sampling_params": Difference(
            "optimizations.sampling_params", "signature", "refill", "bit-identical", True
        )
    }


def test_a_toggle_is_as_exact_as_the_weaker_of_its_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"plain": Variant("", ""), "wild": Variant("", "", Exactness.KNOWN_DEFECT)}
    toggle = Toggle("t", "", "t", variants, "plain", "plain", "", Exactness.BIT_IDENTICAL, step_preserving=True)
    monkeypatch.setattr(differences, "load_toggle", lambda _: toggle)
    one, two = (_scenario().model_copy(update={"optimizations": {"t": name}}) for name in variants)
    assert [item.exactness for item in find_differences(one, two)] == ["known-defect"]
    assert [item.exactness for item in find_differences(two, one)] == ["known-defect"]
    assert toggles.load_toggle("sampling_params").step_preserving


@pytest.mark.parametrize(
    ("sections", "key", "exactness"),
    [
        ({"drafter": "ngram"}, "drafter.name", "numerically-equivalent"),
        ({"drafter": "ngram"}, "drafter.draft_len", "numerically-equivalent"),
        ({"workload": {**WORK, "concurrency": 3}}, "workload.concurrency", "numerically-equivalent"),
        ({"engine": {"max_batch_size": 3}}, "engine.max_batch_size", "numerically-equivalent"),
        ({"optimizations": {"overlap": "on"}}, "optimizations.overlap", "numerically-equivalent"),
        ({"engine": {"attention": "torch-gather"}}, "engine.attention", "numerically-equivalent"),
        ({"engine": {"tokens_per_block": 16}}, "engine.tokens_per_block", "numerically-equivalent"),
        ({"engine": {"max_num_tokens": 64}}, "engine.max_num_tokens", "numerically-equivalent"),
        ({"engine": {"num_threads": 1}}, "engine.num_threads", "numerically-equivalent"),
        ({"engine": {"num_blocks": 99}}, "engine.num_blocks", "bit-identical"),
        ({"engine": {"num_blocks": 2}}, "engine.num_blocks", "numerically-equivalent"),
        ({"engine": {"max_seq_len": 64}}, "engine.max_seq_len", "bit-identical"),
        ({"engine": {"max_seq_len": 64, "num_blocks": 3}}, "engine.max_seq_len", "numerically-equivalent"),
        ({"engine": {"dtype": "float32"}}, "engine.dtype", "changes-output"),
        ({"model": {"source": "tiny", "seed": 1}}, "model.seed", "changes-output"),
        ({"sampling": {"temperature": 0.5}}, "sampling.temperature", "changes-output"),
        ({"acceptance": {"mode": "forced", "length": 1}}, "acceptance.mode", "changes-output"),
        ({"process": {}}, "process", "numerically-equivalent"),
        ({"process": {"env": {"A": "4"}}}, "process.env.A", "numerically-equivalent"),
    ],
)
def test_other_keys_by_the_table(sections: dict[str, Any], key: str, exactness: str) -> None:
    difference = _found(**sections)[key]
    assert (difference.exactness, difference.step_preserving) == (exactness, False)
    assert reason_of(difference)


def test_every_key_that_may_differ_has_a_rule() -> None:
    for key in (*swept_keys(), "drafter.runtime_draft_len"):
        # kv_cache is num_blocks once it is resolved.
        if key not in ("variant", "engine.kv_cache", *SAME_WORK) and not key.startswith("optimizations."):
            assert reason_of(Difference(key, 1, 2, "changes-output", False)), key


def test_what_the_drafter_does_not_read_is_no_difference() -> None:
    plain, ngram = _scenario(), _scenario(drafter={"name": "ngram", "min_ngram": 2, "max_ngram": 5})
    assert not {"drafter.min_ngram", "drafter.max_ngram"} & {item.key for item in find_differences(plain, ngram)}
    other = _scenario(drafter={"name": "ngram", "min_ngram": 1, "max_ngram": 5})
    assert [item.key for item in find_differences(ngram, other)] == ["drafter.min_ngram"]


def test_how_it_is_measured_is_no_difference() -> None:
    assert not find_differences(_scenario(), _scenario(measure={"warmup_requests": 9, "margin": "1%"}, name="y"))


def test_defaults_that_follow_are_told_apart_from_the_cause() -> None:
    found = find_differences(_scenario(), _scenario(workload={**WORK, "concurrency": 3}))
    assert [item.key for item in found] == [
        "workload.concurrency", "engine.max_batch_size", "engine.num_blocks",
    ]  # fmt: skip
    assert list_following(found) == ["engine.max_batch_size", "engine.num_blocks"]
    alone = find_differences(_scenario(), _scenario(engine={"num_blocks": 99}))
    assert list_following(alone) == []


def test_the_weakest_decides() -> None:
    found = find_differences(_scenario(), _scenario(drafter="ngram", engine={"dtype": "float32"}))
    assert weakest(found) == "changes-output"
    assert weakest(item for item in found if item.key != "engine.dtype") == "numerically-equivalent"


@pytest.mark.parametrize(
    "sections",
    [
        {"workload": {**WORK, "isl": 17}},
        {"workload": {**WORK, "osl": 15}},
        {"workload": {**WORK, "num_requests": 3}},
        {"workload": {**WORK, "seed": 3}},
        {"workload": {"kind": "chat80", "concurrency": 2}},
        {"sampling": {"seed": 1}},
        {"sampling": {"ignore_eos": False}},
        {"sampling": {"stop_token_ids": [3]}},
    ],
)
def test_arms_that_do_other_work_are_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match="one and two are not asked for the same work"):
        refuse_unlike(_scenario(), _scenario(**sections), ("one", "two"))


def test_how_the_work_is_done_is_not() -> None:
    other = _scenario(workload={**WORK, "concurrency": 5}, engine={"dtype": "float32"}, drafter="ngram")
    refuse_unlike(_scenario(), other, ("one", "two"))


def _design(requested: str = "auto", *, same_process: bool = True, **sections: Any) -> tuple[str, str]:
    found = find_differences(_scenario(), _scenario(**sections))
    return choose_design(requested, found, same_process=same_process)


def test_auto_is_mirrored_wherever_both_arms_can_share_an_engine() -> None:
    design, why = _design(optimizations={"sampling_params": "refill"})
    assert design == "mirrored"
    assert why.startswith("sampling_params: bit-identical and step-preserving")
    assert _design() == ("mirrored", "nothing differs, so that every step can be timed in both arms")


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"drafter": "ngram"}, "drafter.name is numerically-equivalent: K + 1 rows"),
        ({"workload": {**WORK, "concurrency": 3}}, "workload.concurrency is numerically-equivalent"),
        ({"engine": {"max_seq_len": 64}}, "engine.max_seq_len is not step-preserving"),
        ({"engine": {"dtype": "float32"}}, "engine.dtype is changes-output"),
        (
            {"optimizations": {"overlap": "on"}},
            "optimizations.overlap is numerically-equivalent: an end that the host has not seen yet",
        ),
    ],
)
def test_auto_says_why_it_takes_runs(sections: dict[str, Any], why: str) -> None:
    design, found = _design(**sections)
    assert design == "runs"
    assert found.startswith(why)


def test_an_arm_in_its_own_process_takes_runs() -> None:
    assert _design(same_process=False)[0] == "runs"


def test_runs_can_always_be_asked_for() -> None:
    assert _design("runs") == ("runs", "asked for")


def test_mirrored_where_it_cannot_hold_is_an_error_that_says_why() -> None:
    with pytest.raises(ScenarioError, match="cannot compare these arms: drafter") as caught:
        _design("mirrored", drafter="ngram")
    assert caught.value.where == "measure.design"
