"""What the process of an arm answers to requests it cannot serve; nothing here builds an engine."""

from __future__ import annotations

from typing import Any

import pytest
from arm_process import tiny_config

from specbench.measure.remote import pack_toggles
from specbench.measure.subject_server import SubjectServer
from specbench.measure.wire import PROTOCOL, pack_settings


def build(toggles: dict[str, Any] | None = None, **chosen: Any) -> dict[str, Any]:
    config = pack_settings(tiny_config(device="none"))
    config["chosen"] |= chosen
    return {"op": "build", "config": config, "toggles": toggles or {}, "with_ranges": False}


def error_of(request: dict[str, Any]) -> dict[str, Any]:
    answer = SubjectServer().answer(request)
    assert set(answer) == {"error"}
    return dict(answer["error"])


def test_it_introduces_itself() -> None:
    answer = SubjectServer().answer({"op": "hello", "protocol": PROTOCOL, "die_with_parent": False})
    assert answer["protocol"] == PROTOCOL
    assert answer["imported_from"].endswith("specbench")
    assert answer["torch"]


def test_an_unknown_operation_is_an_input_error_that_names_it() -> None:
    assert "'teleport'" in error_of({"op": "teleport"})["what"]


@pytest.mark.parametrize("operation", ["advance", "drain", "settle", "describe"])
def test_nothing_works_before_an_engine_is_built(operation: str) -> None:
    error = error_of({"op": operation, "max_steps": 1, "max_ms": 1})
    assert (error["kind"], error["what"]) == ("InputError", "no engine has been built")


def test_a_setting_of_another_commit_is_refused_by_name() -> None:
    error = error_of(build(warp_factor=9))
    assert error["kind"] == "InputError"
    assert "EngineConfig.warp_factor, which is 9" in error["what"]


def test_a_toggle_of_another_commit_must_be_in_its_baseline_variant() -> None:
    error = error_of(build({"fused_warp": ["fast", False]}))
    assert "has no toggle 'fused_warp'" in error["what"]
    assert "baseline variant" in error["hint"]
    # In the baseline variant the build goes on, as far as the device that does not exist.
    assert "device" in error_of(build({"fused_warp": ["plain", True]}))["what"]


def test_what_a_commit_without_a_toggle_does_anyway_is_said() -> None:
    """Without captures it does not matter how they are made, and the variant in production is not the baseline's."""
    chosen = {"overlap": "off", "graphs": "off", "capture_params": "real_params", "sampling_params": "signature"}
    assert pack_toggles(chosen) == {
        "overlap": ["off", True], "graphs": ["off", True], "capture_params": ["real_params", True],
        "sampling_params": ["signature", False],
    }  # fmt: skip
    chosen |= {"overlap": "on", "graphs": "captured"}
    assert [name for name, (_, same) in pack_toggles(chosen).items() if same] == []


def test_a_variant_of_another_commit_is_refused() -> None:
    assert error_of(build({"sampling_params": ["of_tomorrow", True]}))["kind"] == "UnknownNameError"


def test_a_defect_is_answered_and_its_traceback_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of({"op": "build"})["what"].startswith("KeyError")
    assert "Traceback" in capsys.readouterr().err
