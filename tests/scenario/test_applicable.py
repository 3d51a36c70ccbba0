"""Toggles that only some models have: refused where there is no use for them, left out of off and on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engine.models.hf_config_writer import to_hf_config
from specbench.engine.models.presets import TINY, TINY_HYBRID
from specbench.errors import InputError
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.applicable import applicable_toggles, has_recurrent_state
from specbench.scenario.contributions import Part, combine
from specbench.scenario.loader import load_scenario, open_scenario
from specbench.scenario.resolve import resolve

Write = Callable[[str], Path]
PLENTY = 1 << 40
"""Bytes of memory, so that this machine's do not matter."""


def written(folder: Path, architecture_of: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_hf_config(architecture_of)))  # type: ignore[arg-type]
    return str(folder)


@pytest.mark.parametrize(("source", "expected"), [("tiny", False), ("tiny-hybrid", True), ("smollm2-135m", False)])
def test_presets_say_what_they_keep(source: str, expected: bool) -> None:
    assert has_recurrent_state(source) is expected
    assert has_recurrent_state(f"random:{source}") is expected
    assert ("state_indices" in applicable_toggles(source)) is expected
    assert set(OPTIMIZATIONS) - set(applicable_toggles(source)) == (set() if expected else {"state_indices"})


def test_directories_do_too_and_what_cannot_be_read_does_not(tmp_path: Path) -> None:
    assert has_recurrent_state(written(tmp_path / "hybrid", TINY_HYBRID.config))
    assert not has_recurrent_state(written(tmp_path / "llama", TINY.config))
    plain = replace(TINY_HYBRID.config, linear_attention=None)
    assert not has_recurrent_state(written(tmp_path / "attention", plain))
    (tmp_path / "llama" / "config.json").write_text("{")
    assert not has_recurrent_state(str(tmp_path / "llama"))
    assert not has_recurrent_state("organisation/name")
    assert not has_recurrent_state(str(tmp_path / "nowhere"))


def refused(path: Path, *overrides: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return caught.value


@pytest.mark.parametrize("variant", ["bulk", "per_request"])
def test_a_model_without_state_refuses_the_toggle_with_the_reason(write: Write, variant: str) -> None:
    error = refused(write(f"model: tiny\noptimizations: {{state_indices: {variant}}}"))
    assert error.what == "state_indices has no effect: the model tiny has no recurrent state"
    assert error.where is not None
    assert error.where.endswith("optimizations.state_indices")
    assert "tiny-hybrid" in (error.hint or "")


def test_so_does_a_study_that_lists_it(write: Write) -> None:
    error = refused(write("model: tiny\nstudy: [sampling_params, state_indices]"))
    assert "the model tiny has no recurrent state" in error.what
    assert error.where is not None
    assert error.where.endswith("study[1]")


def test_an_override_or_a_variant_that_sets_it_is_refused(write: Write) -> None:
    path = write("model: tiny\nvariants: {mine: {state_indices: bulk}}")
    assert "no recurrent state" in refused(path, "optimizations.state_indices=bulk").what
    with pytest.raises(InputError, match="no recurrent state"):
        load_scenario(path, variant="mine")
    with pytest.raises(InputError, match="no recurrent state"):
        load_scenario(path, variant="state_indices=per_request")


def test_a_hybrid_model_takes_it(write: Write) -> None:
    path = write("model: tiny-hybrid\nstudy: [state_indices]\noptimizations: {state_indices: per_request}")
    assert load_scenario(path).optimizations["state_indices"] == "per_request"
    assert load_scenario(path, variant="on").optimizations["state_indices"] == "bulk"


@pytest.mark.parametrize(("source", "expected"), [("tiny", None), ("tiny-hybrid", ("per_request", "bulk"))])
def test_off_and_on_contain_it_where_the_model_has_it(
    write: Write, source: str, expected: tuple[str, str] | None
) -> None:
    path = write(f"model: {source}\nworkload: {{kind: random_tokens, isl: 8, osl: 8}}")
    for index, variant in enumerate(("off", "on")):
        resolved = resolve(load_scenario(path, variant=variant), available_memory=lambda _: PLENTY)
        chosen = dict(resolved.engine.optimizations).get("state_indices")
        assert chosen == (expected and expected[index])
        assert ("state_indices" in (resolved.scenario.study or ())) is (expected is not None)


def test_arms_with_unlike_models_are_put_together_from_what_each_has(write: Write) -> None:
    file = open_scenario(write("model: tiny-hybrid\nvariants: {plain: {model: tiny}}"))
    hybrid, plain = file.base, file.with_variant("plain")
    whole = combine(hybrid, plain, [Part(("model", "optimizations.state_indices"))])
    assert whole.model.source == "tiny"
    assert "state_indices" not in whole.optimizations
    back = combine(plain, hybrid, [Part(("model", "optimizations.state_indices"))])
    assert back.optimizations["state_indices"] == "bulk"


def test_the_memory_of_the_state_is_counted(write: Write) -> None:
    path = write("model: tiny-hybrid\ndrafter: {name: ngram, draft_len: 3}\nworkload: {concurrency: 6}")
    need = resolve(load_scenario(path), available_memory=lambda _: PLENTY).memory
    assert need.state_bytes == TINY_HYBRID.config.state_bytes(7, 4, 2) > 0
    assert "recurrent state" in str(need)
    other = resolve(load_scenario(path, ["model=tiny"]), available_memory=lambda _: PLENTY).memory
    assert other.state_bytes == 0
    assert "recurrent state" not in str(other)
