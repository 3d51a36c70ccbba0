"""The grammar of a variant, V: a variant named in the scenario, ``off``, ``on``, or ``key=value,key=value``.

``off`` and ``on`` give the toggles of ``study`` their baseline or their recommended variant. In a list of overrides
a toggle goes by its name, any other scenario key in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from specbench.engine.optimizations.base import load_toggle
from specbench.errors import InputError, ScenarioError, nearest_hint
from specbench.registry import OPTIMIZATIONS
from specbench.scenario.applicable import default_study
from specbench.scenario.masking import mask
from specbench.scenario.overrides import Override, parse_key, parse_value, split_commas
from specbench.scenario.places import Places, dotted, shorten
from specbench.scenario.plan import NOT_MEASURED
from specbench.scenario.schema import Scenario

OFF, ON = "off", "on"


def variant_overrides(text: str, scenario: Scenario, *, flag: str = "--variant") -> list[Override]:
    """What variant ``text`` changes in ``scenario``.

    :raises ScenarioError: no such variant, or an override that cannot be read.
    """
    if text in scenario.variants:
        return _named(text, scenario.variants[text], scenario.places)
    if text in (OFF, ON):
        return _study(text, scenario, f"{flag} {text}")
    if "=" in text:
        return _inline(text, flag)
    known = [*scenario.variants, OFF, ON]
    raise ScenarioError(
        f"no such variant; this scenario has: {', '.join(known)}",
        where=f"{flag} {shorten(text) or repr(text)}",
        hint=nearest_hint(text, known) or "name one of these, or write key=value,key=value",
    )


@contextmanager
def naming(text: str | None, flag: str = "--variant") -> Iterator[None]:
    """Name the variant in what is wrong with the scenario that it makes, where the place of the fault does not.

    A variant may be wrong on top of what a command line changed: the place is then that change. Only for a scenario
    that is right without the variant.

    :param text: None: no variant was asked for, and none is named.
    :raises InputError: what was raised inside.
    """
    try:
        yield
    except InputError as error:
        if text is None:
            raise
        where, who = error.where or "", f"{flag} {shorten(mask(text))}"
        if where.startswith(f"{flag} ") or f"(variant {text!r})" in where:
            raise
        raise type(error)(error.what, where=f"{who}: {where}" if where else who, hint=error.hint) from None


def _named(name: str, changes: Mapping[str, Any], places: Places) -> list[Override]:
    overrides = []
    for key, value in changes.items():
        place = f"{places.of(('variants', name, key))} (variant {name!r})"
        overrides.append(Override(_path(str(key), place), value, place))
    return overrides


def _study(which: str, scenario: Scenario, place: str) -> list[Override]:
    names = default_study(scenario.model.source) if scenario.study is None else list(scenario.study)
    overrides = []
    for name in names:
        toggle = load_toggle(name)
        value = toggle.baseline if which == OFF else toggle.recommended
        overrides.append(Override(("optimizations", name), value, place))
    return overrides


def _inline(text: str, flag: str) -> list[Override]:
    overrides = []
    for piece in _assignments(text):
        key, _, value = piece.partition("=")
        place = f"{flag} {shorten(key.strip())}"
        path = _path(key.strip(), place)
        overrides.append(Override(path, parse_value(value, path, where=place), place))
    return overrides


def _assignments(text: str) -> Iterable[str]:
    """``a=1,2,b=3`` -> ``a=1,2`` and ``b=3``: a piece without ``=`` goes on with the value before it."""
    current = ""
    for piece in split_commas(text):
        starts = "=" in piece and piece.partition("=")[0].strip().replace(".", "").replace("_", "").isalnum()
        if starts and current:
            yield current
            current = piece
        else:
            current = f"{current},{piece}" if current else piece
    yield current


def _path(key: str, place: str) -> tuple[str | int, ...]:
    """The key path that ``key`` means inside a variant."""
    path = parse_key(key, where=place) if key else ()
    if not path:
        raise ScenarioError("a key is missing before the =", where=place)
    if len(path) == 1 and path[0] in OPTIMIZATIONS and path[0] not in Scenario.model_fields:
        return ("optimizations", path[0])
    if path[0] in NOT_MEASURED:
        raise ScenarioError(f"a variant cannot set {path[0]}", where=place)
    if path[0] not in Scenario.model_fields:
        names = [*OPTIMIZATIONS, *Scenario.model_fields]
        raise ScenarioError(
            f"no such key {shorten(repr(dotted(path)))}; allowed: a toggle ({', '.join(OPTIMIZATIONS)}) "
            "or a scenario key in full",
            where=place,
            hint=nearest_hint(str(path[0]), names),
        )
    return path
