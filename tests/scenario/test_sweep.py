"""From the lists of a sweep to its points."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.errors import InputError, ScenarioError
from specbench.scenario.axes import VARIANT
from specbench.scenario.loader import open_scenario
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Drafter, Scenario
from specbench.scenario.sweep import expand_sweep, merged_points
from specbench.scenario.sweep_conflicts import MAX_POINTS, swept_keys
from specbench.scenario.yaml12 import to_plain

Write = Callable[[str], Path]

BASE = "model: tiny\ndrafter: ngram\nworkload: {kind: random_tokens, osl: 8, isl: 8}\n"


def _coordinates(path: Path, *overrides: str) -> list[dict[str, Any]]:
    return [point.coordinates for point in expand_sweep(open_scenario(path, overrides))]


def test_no_sweep_is_one_point_that_changes_nothing(write: Write) -> None:
    (point,) = expand_sweep(open_scenario(write(BASE)))
    assert (point.coordinates, point.overrides, point.name) == ({}, (), "")


def test_lists_and_grid_are_crossed_and_zip_goes_in_step(write: Write) -> None:
    path = write(
        BASE
        + """
        sweep:
          concurrency: [1, 4]
          grid: {optimizations.overlap: ["on", "off"]}
          zip: {workload.isl: [16, 32], workload.osl: [2, 3]}
        """.replace("\n        ", "\n")
    )
    expected = [
        {"workload.concurrency": c, "optimizations.overlap": overlap, "workload.isl": isl, "workload.osl": osl}
        for c in (1, 4)
        for overlap in ("on", "off")
        for isl, osl in ((16, 2), (32, 3))
    ]
    assert _coordinates(path) == expected


def test_the_short_lists_mean_their_keys_and_ranges_stay_whole(write: Write) -> None:
    found = _coordinates(
        write(BASE), "sweep.draft_len=0,2", "sweep.isl=[[4, 8], 9]", "sweep.osl=5", "sweep.grid.sampling.top_k=7"
    )
    assert found[0] == {"drafter.draft_len": 0, "workload.isl": [4, 8], "workload.osl": 5, "sampling.top_k": 7}
    assert [point["workload.isl"] for point in found] == [[4, 8], 9, [4, 8], 9]


def test_points_are_applied_before_any_default(write: Write) -> None:
    file = open_scenario(write(BASE), ["sweep.concurrency=2,6"])
    scenarios = [file.changed(point.overrides, drop=("sweep",)) for point in expand_sweep(file)]
    assert [scenario.workload.concurrency for scenario in scenarios] == [2, 6]
    assert {scenario.engine.max_batch_size for scenario in scenarios} == {None}


def test_variants_are_an_axis(write: Write) -> None:
    path = write(BASE + "variants: {plain: {drafter: none}}\nsweep: {osl: [2, 3], zip: {variant: [plain, 'off']}}\n")
    points = expand_sweep(open_scenario(path))
    assert [point.coordinates for point in points] == [
        {"workload.osl": osl, "variant": variant} for osl in (2, 3) for variant in ("plain", "off")
    ]
    assert [override.path for override in points[0].overrides] == [("drafter",), ("workload", "osl")]
    assert points[0].name == "workload.osl=2, variant=plain"


def test_a_variant_that_sets_another_axis_is_refused(write: Write) -> None:
    path = write(BASE + "variants:\n  plain:\n    drafter: none\nsweep: {draft_len: [2], grid: {variant: [plain]}}\n")
    with pytest.raises(ScenarioError, match="'plain' sets drafter, which the sweep varies") as caught:
        expand_sweep(open_scenario(path))
    assert caught.value.where == f"{path}:6 (variant 'plain')"


def test_a_value_that_does_not_go_with_the_rest_names_its_place(write: Write) -> None:
    file = open_scenario(write("model: tiny\nsweep:\n  draft_len: [0, 4]\n"))
    nothing, four = expand_sweep(file)
    file.changed(nothing.overrides, drop=("sweep",))
    with pytest.raises(InputError, match="drafter none proposes nothing, but K is 4") as caught:
        file.changed(four.overrides, drop=("sweep",))
    assert caught.value.where == f"{file.path}:3 (sweep.draft_len: 4): drafter.draft_len"


def test_too_many_points_are_refused_before_they_are_made(refusal: Callable[..., InputError]) -> None:
    lists = {"concurrency": range(1, 102), "osl": range(1, 101)}
    overrides = [f"sweep.{key}={','.join(map(str, values))}" for key, values in lists.items()]
    error = refusal(BASE, *overrides)
    assert error.what == f"makes 10100 points; allowed: {MAX_POINTS} or fewer"


def test_keys_that_say_how_it_is_measured_are_not_swept() -> None:
    keys = swept_keys()
    assert {"workload.concurrency", "optimizations.sampling_params", "variant", "model.source"} <= set(keys)
    assert not [key for key in keys if key.startswith(("measure", "sweep", "process", "study", "name", "variants"))]


OWN_LENGTHS = "model: tiny\nworkload: {kind: %s, osl: 8%s}\n"
WITH_TREE = BASE.replace("ngram", "{name: eagle3, tree: {top_k: 4, depth: 4, num_nodes: 12}}")
OPEN: dict[str, tuple[Any, str]] = {
    **{f"drafter.tree.{name}": (value, WITH_TREE) for name, value in (("top_k", 3), ("depth", 3), ("num_nodes", 9))},
    "model.revision": ("main", BASE),
    "drafter.model": ("tiny", BASE.replace("ngram", "{name: draft_model, model: random:tiny}")),
    "acceptance.length": (1.5, BASE + "acceptance: {mode: forced, length: 2.0}\n"),
    "acceptance.source": (".", BASE + "acceptance: {mode: replay, source: .}\n"),
    "workload.path": ("other.jsonl", OWN_LENGTHS % ("prompts", ", path: other.jsonl")),
    "workload.categories": (["writing"], OWN_LENGTHS % ("chat80", "")),
    "workload.turns": (1, OWN_LENGTHS % ("chat80", "")),
    "workload.system_prompt": ("Be brief.", OWN_LENGTHS % ("chat80", "")),
    "sampling.temperature": (0.5, BASE),
    "sampling.top_k": (7, BASE),
    "sampling.top_p": (0.5, BASE),
    "engine.kv_cache": ("64MiB", BASE),
    "engine.num_threads": (2, BASE),
    "optimizations.state_indices": ("per_request", BASE.replace("tiny", "tiny-hybrid")),
    "engine.sim": ("h100-8b", BASE + "acceptance: {mode: forced, length: 1.0}\nengine: {device: sim, sim: h200-32b}\n"),
}
"""Keys that are null where nothing is asked for: a value, and a scenario in which they have a meaning."""


@pytest.mark.parametrize("key", swept_keys())
def test_every_key_that_may_be_swept_can_be(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """A key in the list that cannot be set would be a trap."""
    monkeypatch.chdir(tmp_path)
    for name in ("requests.jsonl", "trials.jsonl"):
        Path(name).touch()
    Path("other.jsonl").write_text('{"prompt": "Say yes."}\n')
    value, base = OPEN.get(key) or (_default(open_scenario(write(BASE)).base, key), BASE)
    file = open_scenario(write(base + yaml.safe_dump({"sweep": {"grid": {key: [value]}}})))
    (point,) = expand_sweep(file)
    assert point.coordinates == {key: value}
    if key == VARIANT:
        assert {override.path for override in point.overrides} >= {("optimizations", "sampling_params")}
        return
    assert [(override.path, override.value) for override in point.overrides] == [(tuple(key.split(".")), value)]
    found = to_plain(file.changed(point.overrides, drop=("sweep",)).model_dump())
    assert reduce(lambda section, name: section[name], key.split("."), found) == value


def test_a_table_is_swept_by_variants(refusal: Callable[..., InputError]) -> None:
    error = refusal(BASE + "sweep: {grid: {drafter.runtime_draft_len: [2]}}\n")
    assert (error.what, error.hint) == (
        "is no scenario key that can be swept",
        "sweep variant, with a variant for each table",
    )


def _default(scenario: Scenario, key: str) -> Any:
    """What the key is when defaults are written out."""
    if key == VARIANT:
        return "off"
    section, _, name = key.partition(".")
    return to_plain(resolve(scenario).scenario.model_dump())[section][name]


DRAFTERS = BASE + "sweep: {drafter: [none, ngram], draft_len: [2, 4], concurrency: [1, 4]}\n"


def _in_full(path: Path, *overrides: str) -> list[tuple[str, int, int]]:
    """Drafter, K and concurrency of each point, defaults written out."""
    file = open_scenario(path, overrides)
    scenarios = [file.changed(point.overrides, drop=("sweep",)) for point in expand_sweep(file)]
    resolved = [resolve(scenario).scenario for scenario in scenarios]
    return [(one.drafter.name, one.drafter.draft_len or 0, one.workload.concurrency) for one in resolved]


def test_the_drafter_none_is_not_crossed_with_k(write: Write) -> None:
    path = write(DRAFTERS)
    expected = [("none", 0), ("ngram", 2), ("ngram", 4)]
    assert _in_full(path) == [(name, length, concurrency) for concurrency in (1, 4) for name, length in expected]
    assert [(point["drafter.name"], point["drafter.draft_len"]) for point in _coordinates(path)] == expected * 2
    assert merged_points(open_scenario(path)) == [
        "the drafter none drafts nothing: its K is 0, and drafter.draft_len is not varied for it: 6 points instead of 8"
    ]


def test_without_none_or_without_k_nothing_is_merged(write: Write) -> None:
    for sweep in ("drafter: [ngram], draft_len: [2, 4]", "drafter: [none, ngram]", "draft_len: [2, 4]"):
        file = open_scenario(write(BASE + f"sweep: {{{sweep}}}\n"))
        assert merged_points(file) == []
        assert len(expand_sweep(file)) == 2


def test_none_takes_nothing_of_the_scenarios_drafter(write: Write) -> None:
    base = BASE.replace("drafter: ngram", "drafter: {name: ngram, runtime_draft_len: {2: 3}, min_ngram: 2}")
    file = open_scenario(write(base + "sweep: {drafter: [none, ngram]}\n"))
    plain, ngram = (file.changed(point.overrides, drop=("sweep",)).drafter for point in expand_sweep(file))
    assert plain == Drafter(name="none")
    assert (ngram.runtime_draft_len, ngram.min_ngram) == ({2: 3}, 2)


def test_none_in_step_has_k_0_whatever_the_list_says(write: Write) -> None:
    lists = "drafter.name: [none, ngram, ngram], drafter.draft_len: [4, 2, 4], drafter.max_ngram: [3, 3, 2]"
    path = write(BASE + f"sweep: {{zip: {{{lists}}}}}\n")
    assert _in_full(path) == [("none", 0, 1), ("ngram", 2, 1), ("ngram", 4, 1)]
    assert _coordinates(path)[0] == {"drafter.name": "none", "drafter.draft_len": 0}
    assert "drafter.draft_len, drafter.max_ngram is not varied" in merged_points(open_scenario(path))[0]


def test_none_commits_a_token_a_step_where_acceptance_is_forced(write: Write) -> None:
    path = write(BASE + "acceptance: {mode: forced, length: 2.4}\nsweep: {grid: {drafter.name: [none, ngram]}}\n")
    file = open_scenario(path, ["sweep.grid.acceptance.length=1.5,2.5"])
    lengths = [file.changed(point.overrides, drop=("sweep",)).acceptance.length for point in expand_sweep(file)]
    assert lengths == [1.0, 1.5, 2.5]


def test_an_unknown_drafter_names_its_place(write: Write) -> None:
    file = open_scenario(write(BASE + "sweep: {drafter: [none, ngam]}\n"))
    with pytest.raises(InputError, match="unknown drafter 'ngam'") as caught:
        file.changed(expand_sweep(file)[1].overrides, drop=("sweep",))
    assert caught.value.where == f"{file.path}:4 (sweep.drafter: ngam): drafter.name"
    assert caught.value.hint == "did you mean 'ngram'?"
