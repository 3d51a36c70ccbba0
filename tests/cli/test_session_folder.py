"""Why a command on a results folder calls its figures INVALID."""

from __future__ import annotations

from types import SimpleNamespace

from specbench.cli.session_folder import list_invalid
from specbench.records import Gate

WRONG = Gate("tokens", "fail", "tokens differ")


def spoiled(candidate: str, *gates: Gate) -> SimpleNamespace:
    reasons = [f"{gate.name}: {gate.detail}" for gate in gates if gate.status == "fail"]
    verdict = "INVALID" if reasons else "EQUIVALENT"
    return SimpleNamespace(candidate=candidate, point={}, verdict=verdict, reasons=reasons, gates=list(gates))


def listed(gates: list[Gate], *comparisons: SimpleNamespace) -> list[str]:
    return list_invalid(SimpleNamespace(gates=gates, comparisons=list(comparisons)))  # type: ignore[arg-type]


def test_a_reason_is_told_once() -> None:
    clean = Gate("tokens", "pass", "identical")
    assert listed([WRONG], spoiled("on", WRONG)) == ["on: tokens: tokens differ"]
    summed_up = Gate("tokens", "fail", "v1 (comparison 1): tokens differ")
    assert listed([summed_up], spoiled("v0", clean), spoiled("v1", WRONG)) == ["v1: tokens: tokens differ"]


def test_what_no_comparison_tells_is_told_of_the_whole() -> None:
    nothing = Gate("complete", "fail", "0 trials count")
    assert listed([nothing, WRONG], spoiled("on", WRONG)) == ["complete: 0 trials count", "on: tokens: tokens differ"]
    assert listed([WRONG]) == ["tokens: tokens differ"]
    assert listed([Gate("clocks", "warn", "free")], spoiled("on")) == []
