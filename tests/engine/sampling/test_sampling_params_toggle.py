"""Toggle ``sampling_params``: its declaration, the facts of a step, its switch, and variant ``refill``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_reference import Copies, Queue, make_rows

from specbench import registry
from specbench.device.base import Device
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.optimizations.base import Exactness, Toggle, Variant, build_switch, load_toggle
from specbench.engine.sampling.buffers import SamplingBuffers
from specbench.engine.sampling.metadata import RowClass, RowFacts, classify, normalize
from specbench.engine.sampling.params import GREEDY_TEMPERATURE, TOP_K_OFF, SamplingParams
from specbench.engine.sampling.refill import RefillSamplingParams
from specbench.errors import UnknownNameError

CPU = torch.device("cpu")
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
WARM = SamplingParams(temperature=1.5)
NEXT_TO_GREEDY = GREEDY_TEMPERATURE * (1 + 1e-8)
"""Above the greedy temperature in float64, equal to it in the float32 that the device sees."""


def refill(copies: Callable[[torch.Tensor, torch.Tensor], None], max_batch_size: int = 4) -> RefillSamplingParams:
    return RefillSamplingParams(SamplingBuffers(max_batch_size, 3, CPU, copies))


def test_rows_hold_each_requests_parameters_in_order() -> None:
    copies = Copies()
    filler = refill(copies)
    rows = filler.fill([SAMPLED, GREEDY, WARM], [1, 4, 2])
    copies.run()
    assert rows.temperature.tolist() == pytest.approx([0.7] + [1e-5] * 4 + [1.5] * 2)
    assert rows.top_k.tolist() == [50] + [TOP_K_OFF] * 6
    assert rows.top_p.tolist() == pytest.approx([0.9] + [1.0] * 6)
    assert rows.is_greedy.tolist() == [False] + [True] * 4 + [False] * 2
    assert filler.buffers.requests.top_k[:3].tolist() == [50, TOP_K_OFF, TOP_K_OFF]
    facts = rows.facts
    assert (facts.num_greedy, facts.num_plain, facts.num_top_k, facts.num_top_p, facts.num_both) == (4, 2, 0, 0, 1)
    assert (rows.all_greedy, rows.any_greedy, rows.any_top_k, rows.any_top_p) == (False, True, True, True)
    assert rows.top_k_max == 50


def test_an_all_greedy_step_touches_nothing() -> None:
    copies = Copies()
    filler = refill(copies)
    filler.fill([SAMPLED], [4])
    copies.run()
    tables = (filler.buffers.requests, filler.buffers.rows)
    before = [(table.temperature.clone(), table.top_k.clone(), table.top_p.clone()) for table in tables]
    rows = filler.fill([GREEDY, SamplingParams(temperature=0.0)], [4, 1])
    assert rows.all_greedy
    assert rows.is_greedy.tolist() == [True] * 5
    assert copies.pending == []
    assert (filler.counters.fills, filler.counters.skips, filler.counters.copies) == (1, 1, 6)
    for table, (temperature, top_k, top_p) in zip(tables, before, strict=True):
        assert torch.equal(table.temperature, temperature)
        assert torch.equal(table.top_k, top_k)
        assert torch.equal(table.top_p, top_p)


def test_a_late_copy_still_reads_its_own_steps_values() -> None:
    copies = Copies()
    filler = refill(copies)
    first = filler.fill([SAMPLED], [4])
    second = filler.fill([WARM, SAMPLED], [1, 1])  # prepared while the first step's copies wait
    copies.run(6)
    assert first.top_k.tolist() == [50] * 4
    copies.run()
    assert second.top_k.tolist() == [TOP_K_OFF, 50]


def test_buffers_are_allocated_once() -> None:
    filler = refill(Copies())
    pointers = {filler.fill([SAMPLED] * size, [4] * size).temperature.data_ptr() for size in (1, 4, 2)}
    assert len(pointers) == 1


def test_requests_without_rows_count_for_no_row() -> None:
    copies = Copies()
    rows = refill(copies).fill([SAMPLED, GREEDY], [0, 2])
    assert rows.all_greedy
    assert copies.pending == []
    rows = refill(copies).fill([replace(SAMPLED, top_k=70), SAMPLED], [0, 2])
    copies.run()
    assert (rows.top_k_max, rows.top_k.tolist()) == (50, [50, 50])


def test_lengths_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        refill(Copies()).fill([SAMPLED, SAMPLED], [1])


PARAMS = st.builds(
    SamplingParams,
    temperature=st.none()
    | st.floats(0.0, 2e-5)
    | st.floats(0.0, 1.7e308)
    | st.sampled_from([GREEDY_TEMPERATURE, NEXT_TO_GREEDY]),
    top_k=st.none() | st.integers(0, 5) | st.integers(TOP_K_OFF - 2, 2**70),
    top_p=st.none() | st.floats(0.0, 1.0) | st.floats(1.0 - 1e-7, 1.0) | st.floats(0.0, 1e-40),
)


@given(requests=st.lists(st.tuples(PARAMS, st.integers(0, 4)), min_size=1, max_size=8))
def test_host_and_device_see_the_same_classes(requests: list[tuple[SamplingParams, int]]) -> None:
    params, counts = [p for p, _ in requests], [count for _, count in requests]
    rows = make_rows(params, counts)
    expected = [classify(normalize(p)) for p, count in requests for _ in range(count)]
    if not rows.all_greedy:
        assert rows.classes.tolist() == expected
        assert rows.is_greedy.tolist() == [row_class is RowClass.GREEDY for row_class in expected]
        assert rows.temperature.isfinite().all()
    assert rows.facts.num_rows == sum(counts)
    assert dict(rows.facts.groups) == {c: expected.count(c) for c in set(expected) if c is not RowClass.GREEDY}
    assert rows.any_greedy == (RowClass.GREEDY in expected)
    with_top_k = [
        min(p.top_k or 0, TOP_K_OFF)
        for p, count in requests
        if count and classify(normalize(p)) in (RowClass.TOP_K, RowClass.BOTH)
    ]
    assert rows.top_k_max == max(with_top_k, default=0)


@pytest.mark.parametrize(
    ("params", "row_class"),
    [
        (SamplingParams(temperature=NEXT_TO_GREEDY), RowClass.GREEDY),
        (SamplingParams(temperature=1.1e-5), RowClass.PLAIN),
        (SamplingParams(top_p=1.0 - 1e-9), RowClass.PLAIN),
        (SamplingParams(top_p=1.0 - 1e-7), RowClass.TOP_P),
        (SamplingParams(temperature=1.0, top_k=TOP_K_OFF), RowClass.PLAIN),
        (SamplingParams(temperature=1.0, top_k=TOP_K_OFF - 1), RowClass.TOP_K),
        (SamplingParams(top_k=2, top_p=0.5), RowClass.BOTH),
    ],
)
def test_values_next_to_a_border(params: SamplingParams, row_class: RowClass) -> None:
    rows = make_rows([params, WARM])
    assert classify(normalize(params)) is row_class
    assert rows.classes.tolist() == [row_class, RowClass.PLAIN]


def test_facts_of_nothing() -> None:
    assert RowFacts.of([]) == RowFacts()
    assert RowFacts().num_rows == 0


def test_declaration() -> None:
    toggle = load_toggle("sampling_params")
    assert toggle.name == "sampling_params"
    assert toggle.baseline == "refill"
    assert toggle.recommended == "signature"
    assert {toggle.exactness_of(name) for name in toggle.variants} == {Exactness.BIT_IDENTICAL}
    assert toggle.step_preserving
    assert toggle.source
    with pytest.raises(UnknownNameError, match="did you mean 'refill'") as caught:
        toggle.require("refil")
    assert caught.value.where == "optimizations.sampling_params"
    assert caught.value.exit_code == 2


def test_a_declaration_that_names_no_variant_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="gather"):
        replace(load_toggle("sampling_params"), recommended="gather")


def test_a_variant_may_differ_in_exactness() -> None:
    toggle = load_toggle("sampling_params")
    leak = Variant("a defect, kept to be shown", "nowhere:nothing", Exactness.KNOWN_DEFECT)
    widened = replace(toggle, variants={**toggle.variants, "leak": leak})
    assert widened.exactness_of("leak") is Exactness.KNOWN_DEFECT
    assert widened.exactness_of("refill") is Exactness.BIT_IDENTICAL


def test_unknown_toggle_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'sampling_params'"):
        load_toggle("sampling_parms")


class FakeDevice:
    torch_device = CPU

    def __init__(self) -> None:
        self.staged: list[torch.Tensor] = []
        self.queue = Queue(is_late=True)

    def stage(self, source: torch.Tensor) -> torch.Tensor:
        self.staged.append(source)
        return source

    def copy_async(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        assert any(source is staged for staged in self.staged)
        self.queue.copy(destination, source)

    def launch(self, program: Callable[[], object], name: str) -> None:
        self.queue.launch(program, name)


CONFIG = EngineConfig(ModelSpec("tiny"), "cpu", 64, 2, 8, drafter=DrafterSpec("ngram", 3))


@pytest.mark.parametrize(
    ("chosen", "expected", "num_copies"),
    [
        (None, "signature", 6),
        ("refill", "refill", 6),
        ("signature", "signature", 6),
        ("device_gather", "device_gather", 2),
    ],
)
def test_the_built_variant_fills_through_the_device(chosen: str | None, expected: str, num_copies: int) -> None:
    config = replace(CONFIG, optimizations=(("sampling_params", chosen),) if chosen else ())
    device = FakeDevice()
    switch = build_switch("sampling_params", config, cast(Device, device))
    assert switch.variant == expected
    rows = switch.current.fill([SAMPLED, SAMPLED], [4, 4], [0, 1])
    device.queue.run()
    assert rows.top_k.tolist() == [50] * 8
    assert len(device.staged) == num_copies
    assert switch.read_counters()[expected]["copies"] == num_copies


def test_variants_fill_the_same_buffers_and_a_switch_swaps_who_does() -> None:
    device = FakeDevice()
    switch = build_switch("sampling_params", CONFIG, cast(Device, device))
    pointers, fillers = set(), []
    for variant in ("refill", "signature", "device_gather", "refill"):
        switch.switch(variant)
        fillers.append(switch.current)
        pointers.add(switch.current.fill([SAMPLED], [4]).temperature.data_ptr())
    assert len(pointers) == 1
    assert fillers[0] is fillers[3]
    assert len(set(map(id, fillers))) == 3
    counters = switch.read_counters()
    assert [counters[name]["fills"] for name in ("refill", "signature", "device_gather")] == [2, 1, 1]


def test_an_unknown_variant_is_refused_and_leaves_the_one_that_stands() -> None:
    with pytest.raises(UnknownNameError, match="unknown variant of sampling_params"):
        build_switch(
            "sampling_params",
            replace(CONFIG, optimizations=(("sampling_params", "magic"),)),
            cast(Device, FakeDevice()),
        )
    switch = build_switch("sampling_params", CONFIG, cast(Device, FakeDevice()))
    before = switch.current
    with pytest.raises(UnknownNameError, match="did you mean 'refill'"):
        switch.switch("refil")
    assert (switch.variant, switch.current) == ("signature", before)


@pytest.mark.parametrize("shared", [None, "choices_of_a_test:share"])
def test_what_variants_share_is_built_once_an_engine(shared: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("choices_of_a_test")
    module.build = lambda *arguments: arguments  # type: ignore[attr-defined]
    module.share = lambda *arguments: list(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    variant = Variant("returns what it is built with", "choices_of_a_test:build")
    toggle = Toggle(
        name="t", summary="", choice_point="t", variants={"a": variant, "b": variant}, baseline="a", recommended="b",
        source="", exactness=Exactness.BIT_IDENTICAL, step_preserving=True, shared=shared,
    )  # fmt: skip
    device = cast(Device, FakeDevice())
    first, second = (cast("dict[str, tuple[object, ...]]", toggle.build(CONFIG, device)) for _ in range(2))
    assert first["a"][:2] == (CONFIG, device)
    if shared is None:
        assert len(first["a"]) == 2
    else:
        assert first["a"][2] == [CONFIG, device]
        assert first["a"][2] is first["b"][2]
        assert first["a"][2] is not second["a"][2]


def test_declarations_load_without_torch() -> None:
    program = (
        "import sys\n"
        "from specbench import registry\n"
        "from specbench.engine.optimizations.base import load_toggle\n"
        "toggles = [load_toggle(name) for name in registry.OPTIMIZATIONS]\n"
        "assert toggles and 'torch' not in sys.modules, 'torch was loaded'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_every_declared_builder_can_be_imported() -> None:
    for name in registry.OPTIMIZATIONS:
        for variant in load_toggle(name).variants.values():
            module, _, attribute = variant.builder.partition(":")
            assert callable(getattr(__import__(module, fromlist=[attribute]), attribute))
