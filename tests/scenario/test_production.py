"""What stands where a scenario is silent, by device; what variants require; who may choose a known defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engine.optimizations.base import Exactness, Toggle, Variant, load_toggle
from specbench.errors import InputError
from specbench.registry import OPTIMIZATIONS
from specbench.scenario import machine
from specbench.scenario.applicable import applicable_toggles, default_study
from specbench.scenario.loader import load_scenario
from specbench.scenario.plan import TOGGLES
from specbench.scenario.questions import ask_ab, ask_sweep
from specbench.scenario.toggle_conflicts import complete_optimizations
from specbench.scenario.variants import variant_overrides

Write = Callable[[str], Path]
Refusal = Callable[..., InputError]
TEXT = "model: tiny\nworkload: {kind: random_tokens, num_requests: 2, isl: 4, osl: 4}\n"
SPECULATING = f"{TEXT}drafter: {{name: ngram, draft_len: 2}}\n"
OUTSIDE = ("overlap", "graphs", "capture_params")
DEFECTS = ("leak", "clear_at_copy", "clear_after_warmup")


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cuda_problem", lambda: "no CUDA device is present")


@pytest.mark.parametrize(
    ("device", "overlap", "graphs"), [("cpu", "off", "off"), ("cuda", "on", "captured"), ("sim", "on", "off")]
)
def test_silence_means_the_production_variant_of_the_device(device: str, overlap: str, graphs: str) -> None:
    chosen = complete_optimizations({"sampling_params": "refill"}, "tiny", device)
    assert chosen == {
        "block_staging": "bounded", "capture_params": "real_params", "graphs": graphs, "input_prep": "steady_state",
        "overlap": overlap, "sampling_params": "refill",
    }  # fmt: skip
    assert list(chosen) == sorted(chosen)


@pytest.mark.parametrize(("problem", "overlap"), [("none here", "off"), (None, "on")])
def test_auto_is_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch, problem: str | None, overlap: str) -> None:
    monkeypatch.setattr(machine, "cuda_problem", lambda: problem)
    assert complete_optimizations({}, "tiny", "auto")["overlap"] == overlap


def test_what_is_named_stands_on_every_device() -> None:
    for device in ("cpu", "cuda", "sim"):
        assert complete_optimizations({"overlap": "off", "graphs": "off"}, "tiny", device)["overlap"] == "off"


def test_off_and_on_leave_alone_what_production_decides(write: Write) -> None:
    assert default_study("tiny") == ["sampling_params", "block_staging", "input_prep"]
    assert set(applicable_toggles("tiny")) - set(default_study("tiny")) == set(OUTSIDE)
    (comparison,) = ask_ab(write(TEXT)).comparisons
    assert not {f"{TOGGLES}{name}" for name in OUTSIDE} & {difference.key for difference in comparison.differences}


def test_a_study_may_name_them(write: Write) -> None:
    path = write(f"{TEXT}study: [overlap, graphs, capture_params]\n")
    on = {"overlap": "on", "graphs": "captured", "capture_params": "real_params"}
    assert load_scenario(path, variant="on").optimizations == on
    path = write(f"{TEXT}study: [overlap, graphs]\n")
    assert load_scenario(path, variant="off").optimizations == {"overlap": "off", "graphs": "off"}


@pytest.mark.parametrize("variant", ["clear_after_capture", *DEFECTS])
def test_a_variant_of_captures_needs_them_and_says_why_they_are_not_there(refusal: Refusal, variant: str) -> None:
    error = refusal(f"{SPECULATING}optimizations:\n  capture_params: {variant}\n")
    assert error.where is not None
    assert error.where.endswith("x.yaml:5: optimizations.capture_params")
    needs = f"{variant} means nothing without graphs=captured, and graphs is off here"
    assert error.what == f"{needs}, as in production on cpu"
    assert error.hint == "set optimizations.graphs=captured as well"
    error = refusal(f"{SPECULATING}optimizations: {{graphs: off, capture_params: {variant}}}\n")
    assert error.what == needs


@pytest.mark.parametrize("variant", DEFECTS)
def test_a_known_defect_of_captures_needs_speculation(write: Write, refusal: Refusal, variant: str) -> None:
    """Without it captures are made with real parameters, and a result would call equal tokens a defect's."""
    captured = f"{TEXT}optimizations: {{graphs: captured}}\n"
    what = f"{variant} means nothing without speculation, and the drafter is none here"
    error = refusal(f"{captured.rstrip()[:-1]}, capture_params: {variant}}}\n")
    assert error.where is not None
    assert error.where.endswith("x.yaml:3: optimizations.capture_params")
    assert error.what == what
    assert error.hint == "drafter: ngram, or another variant"
    path, choice = write(captured), f"capture_params={variant}"
    for refused in (
        lambda: load_scenario(path, variant=choice),
        lambda: ask_ab(path, candidates=[choice]),
        lambda: ask_ab(path, baseline=f"{choice},drafter=ngram", candidates=[f"{choice},drafter=none"]),
        lambda: ask_sweep(path, ["sweep.grid.drafter.name=none,ngram", f"optimizations.{choice}"]),
    ):
        with pytest.raises(InputError, match=what) as caught:
            refused()
        assert "optimizations.capture_params" in (caught.value.where or "")
    assert load_scenario(path, variant=f"{choice},drafter=ngram").optimizations["capture_params"] == variant


def test_other_variants_of_captures_stand_without_speculation(write: Write) -> None:
    for variant in ("real_params", "clear_after_capture"):
        path = write(f"{TEXT}optimizations: {{graphs: captured, capture_params: {variant}}}\n")
        assert load_scenario(path).optimizations["capture_params"] == variant


def test_beside_captures_it_is_accepted_by_its_name(write: Write) -> None:
    for variant in ("real_params", "clear_after_capture", *DEFECTS):
        path = write(f"{SPECULATING}optimizations: {{graphs: captured, capture_params: {variant}}}\n")
        assert load_scenario(path).optimizations["capture_params"] == variant
        by_flag = load_scenario(write(SPECULATING), variant=f"graphs=captured,capture_params={variant}")
        assert by_flag.optimizations == {"graphs": "captured", "capture_params": variant}
    assert load_scenario(write(f"{TEXT}optimizations: {{capture_params: real_params}}\n"))


def test_an_arm_that_lacks_what_its_variant_needs_names_the_arm(write: Write) -> None:
    with pytest.raises(InputError, match="leak means nothing without graphs=captured") as caught:
        ask_ab(write(SPECULATING), candidates=["capture_params=leak"])
    assert caught.value.where == "--candidate capture_params: optimizations.capture_params"


@pytest.mark.parametrize("which", ["off", "on"])
def test_off_and_on_never_choose_a_known_defect(write: Write, which: str) -> None:
    """Whatever a study lists."""
    study = ", ".join(applicable_toggles("tiny-hybrid"))
    scenario = load_scenario(write(f"model: tiny-hybrid\nstudy: [{study}]\noptimizations: {{graphs: captured}}\n"))
    chosen = {str(change.path[1]): str(change.value) for change in variant_overrides(which, scenario)}
    assert set(chosen) == set(applicable_toggles("tiny-hybrid"))
    assert all(load_toggle(name).exactness_of(v) is not Exactness.KNOWN_DEFECT for name, v in chosen.items())


def test_each_has_a_known_defect_only_where_an_arm_names_it(write: Write) -> None:
    path = write(f"{SPECULATING}optimizations: {{graphs: captured}}\n")

    def defects(candidate: str) -> set[str]:
        question = ask_ab(path, candidates=[candidate], each=True, pairs=True)
        chosen = {point.scenario["optimizations"]["capture_params"] for point in question.points if point.scenario}
        return chosen & set(DEFECTS)

    assert defects("on") == set()
    assert defects("overlap=on,capture_params=clear_after_capture,sampling_params=refill") == set()
    assert defects("overlap=on,capture_params=leak") == {"leak"}


def test_a_known_defect_is_what_its_comparison_is_held_to(write: Write) -> None:
    path = write(f"{SPECULATING}optimizations: {{graphs: captured}}\n")
    (comparison,) = ask_ab(path, [], "capture_params=real_params", ["capture_params=leak"]).comparisons
    assert (comparison.exactness, comparison.design) == ("known-defect", "runs")
    (comparison,) = ask_ab(path, [], "capture_params=real_params", ["capture_params=clear_after_capture"]).comparisons
    assert comparison.exactness == "bit-identical"


def declare(**changes: object) -> Toggle:
    variants = {"a": Variant("", ""), "b": Variant("", ""), "bad": Variant("", "", Exactness.KNOWN_DEFECT, ("b=c",))}
    toggle = Toggle("t", "", "t", variants, "a", "b", "", Exactness.BIT_IDENTICAL, step_preserving=True)
    return replace(toggle, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [{"baseline": "bad"}, {"recommended": "bad"}, {"production": {"cpu": "bad"}}])
def test_a_known_defect_has_no_role(role: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="gives a role to 'bad', a known defect"):
        declare(**role)


@pytest.mark.parametrize("role", [{"baseline": "x"}, {"recommended": "x"}, {"production": {"cpu": "x"}}])
def test_a_role_falls_to_a_variant(role: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="names 'x', which is none of its variants"):
        declare(**role)


def test_production_falls_back_to_the_recommended_variant() -> None:
    toggle = declare(production={"cpu": "a"})
    assert [toggle.production_on(device) for device in ("cpu", "cuda", "theirs")] == ["a", "b", "b"]


def test_a_toggle_is_idle_where_its_baseline_cannot_stand() -> None:
    captures = load_toggle("capture_params")
    assert captures.is_idle({"graphs": "off"})
    assert captures.is_idle({})
    assert not captures.is_idle({"graphs": "captured"})
    assert not any(load_toggle(name).is_idle({}) for name in OPTIMIZATIONS if name != "capture_params")
