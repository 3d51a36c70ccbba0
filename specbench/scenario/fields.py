"""Value types of scenario keys: what may be written, and the sentence that says so when something else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from specbench.device.times import NUMBERS
from specbench.scenario import units

ALLOWED = "allowed"
"""Error type of a value that is refused with a sentence saying what is allowed."""

MAX_TOKENS = 10_000_000
MAX_COUNT = 1_000_000
MAX_SEED = 2**63 - 1
MAX_BUDGET_S = 30 * 86400


def refuse(allowed: str) -> PydanticCustomError:
    """The error for a value that is not ``allowed``; diagnosis adds what was found and where."""
    return PydanticCustomError(ALLOWED, "{allowed}", {"allowed": allowed})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parsed(parse: Callable[[str], Any]) -> Callable[[Any], str]:
    """A validator that keeps the text as written, once ``parse`` can read it. A bare number has no unit: refused."""

    def check(value: Any) -> str:
        text = value if isinstance(value, str) else ""
        try:
            parse(text)
        except ValueError as error:
            raise refuse(str(error)) from None
        return text

    return check


def _from_list(value: Any) -> Any:
    """YAML has lists; a frozen scenario holds tuples."""
    return tuple(value) if isinstance(value, list) else value


def _length(value: Any) -> int | tuple[int, int]:
    allowed = f"a whole number from 1 to {MAX_TOKENS}, or a range [low, high]"
    bounds = value if isinstance(value, (list, tuple)) else [value, value]
    whole = all(isinstance(item, int) and not isinstance(item, bool) for item in bounds)
    if len(bounds) != 2 or not whole or not 1 <= bounds[0] <= bounds[1] <= MAX_TOKENS:
        raise refuse(allowed)
    return (bounds[0], bounds[1]) if isinstance(value, (list, tuple)) else bounds[0]


def _num_requests(value: Any) -> int | str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT
    if value != "all" and not is_count:
        raise refuse(f"a whole number from 1 to {MAX_COUNT}, or all")
    return value if isinstance(value, str) else int(value)


def _acceptance_length(value: Any) -> float | tuple[float, ...]:
    rates = value if isinstance(value, (list, tuple)) else None
    if rates is not None:
        if not rates or not all(_is_number(rate) and 0 <= rate <= 1 for rate in rates):
            raise refuse("a list of rates from 0 to 1, one for each draft position")
        return tuple(float(rate) for rate in rates)
    if not _is_number(value) or not 1 <= value <= 1000:
        raise refuse("a mean of 1 or more tokens a step, bonus included, or a list of rates by draft position")
    return float(value)


def _percent(low: float, high: float) -> Callable[[Any], str]:
    """A validator of a percentage above ``low`` and below ``high``; keeps the text as written."""
    allowed = f"a percentage above {low:g}% and below {high:g}%, such as {'95%' if low else '0.5%'}"

    def check(value: Any) -> str:
        try:
            percent = units.parse_percent(value) if isinstance(value, str) else low
        except ValueError:
            percent = low
        if not low < percent < high:
            raise refuse(allowed)
        return str(value)

    return check


def _budget(value: Any) -> str:
    try:
        seconds = units.parse_duration(value) if isinstance(value, str) else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_BUDGET_S:
        raise refuse(f"{units.DURATION_FORM}, above 0 and up to 30d")
    return str(value)


def _environment_value(value: Any) -> Any:
    """A variable is text, and a number written without quotes is meant as its text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _whole_keys(value: Any) -> Any:
    """Keys of a JSON object are text whatever they were: whole numbers again."""
    if not isinstance(value, dict):
        return value
    return {int(k) if isinstance(k, str) and k.isdecimal() and len(k) < 10 else k: v for k, v in value.items()}


def _sweep_values(value: Any) -> tuple[Any, ...]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    if not values or isinstance(value, dict) or value is None:
        raise refuse("a list of values to try, such as [1, 2, 4]")
    return tuple(values)


def _sim_times(value: Any) -> str | dict[str, float]:
    form = f"a preset (`specbench list sim_presets`), or a mapping of {', '.join(NUMBERS)}"
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, dict):
        raise refuse(form)
    if missing := [name for name in NUMBERS if name not in value]:
        raise refuse(f"{form}; {', '.join(missing)} missing here")
    if unknown := [str(name) for name in value if name not in NUMBERS]:
        raise refuse(f"{form}; no {', '.join(unknown)}")
    for name in NUMBERS:
        number = value[name]
        least = "above 0" if name == "bytes_per_us" else "0 or more"
        if not _is_number(number) or not math.isfinite(number) or number < 0 or (number == 0 and least == "above 0"):
            raise refuse(f"{form}, each {least}; {name} is {number!r} here")
    return {name: float(value[name]) for name in NUMBERS}


def _one_or_more(value: Any) -> Any:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not values:
        raise refuse("a number of tokens, or a list of one or more, such as [1024, 4096]")
    return values


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
NonEmptyText = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Names = Annotated[tuple[NonEmptyText, ...], BeforeValidator(_from_list)]
TokenCounts = Annotated[tuple[Tokens, ...], BeforeValidator(_one_or_more)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], BeforeValidator(_from_list)]

_LENGTH_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
    ]
}
LengthOrRange = Annotated[int | tuple[int, int], PlainValidator(_length), WithJsonSchema(_LENGTH_SCHEMA)]
NumRequests = Annotated[
    int | str,
    PlainValidator(_num_requests),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]}),
]
_ACCEPTANCE_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 1},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 1},
    ]
}
AcceptanceLength = Annotated[
    float | tuple[float, ...], PlainValidator(_acceptance_length), WithJsonSchema(_ACCEPTANCE_SCHEMA)
]
_MEANINGS = {
    "base_us": "microseconds of a step, whatever is in it",
    "us_per_row": "microseconds of a token row",
    "us_per_kv_token": "microseconds of a cached token that attention reads",
    "us_per_copy": "microseconds of a copy, whatever its size",
    "bytes_per_us": "bytes that a copy moves in a microsecond",
}
_TIMES_SCHEMA = {
    "type": "object",
    "properties": {
        name: {
            "type": "number",
            "exclusiveMinimum" if name == "bytes_per_us" else "minimum": 0,
            "description": _MEANINGS[name],
        }
        for name in NUMBERS
    },
    "required": list(NUMBERS),
    "additionalProperties": False,
}
SimTimes = Annotated[
    str | dict[str, float],
    PlainValidator(_sim_times),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, _TIMES_SCHEMA]}),
]
SweepValues = Annotated[
    tuple[Any, ...], PlainValidator(_sweep_values), WithJsonSchema({"type": "array", "minItems": 1})
]
SizeText = Annotated[
    str,
    PlainValidator(_parsed(units.parse_size)),
    WithJsonSchema({"type": "string", "pattern": units.SIZE_PATTERN, "examples": ["512MiB", "2GiB"]}),
]
DurationText = Annotated[
    str,
    PlainValidator(_parsed(units.parse_duration)),
    WithJsonSchema({"type": "string", "pattern": units.DURATION_PATTERN, "examples": ["90s", "5m"]}),
]
BudgetText = Annotated[
    str,
    PlainValidator(_budget),
    WithJsonSchema({"type": "string", "pattern": units.DURATION_PATTERN, "examples": ["2m", "15m"]}),
]
MarginText = Annotated[
    str,
    PlainValidator(_percent(0, 100)),
    WithJsonSchema({"type": "string", "pattern": units.PERCENT_PATTERN, "examples": ["0.5%"]}),
]
ConfidenceText = Annotated[
    str,
    PlainValidator(_percent(50, 100)),
    WithJsonSchema({"type": "string", "pattern": units.PERCENT_PATTERN, "examples": ["95%", "99%"]}),
]
EnvironmentValue = Annotated[str, BeforeValidator(_environment_value)]
WholeKeys = BeforeValidator(_whole_keys)
StepRangeText = Annotated[
    str,
    PlainValidator(_parsed(units.parse_step_range)),
    WithJsonSchema({"type": "string", "pattern": units.STEP_RANGE_PATTERN, "examples": ["100-200"]}),
]
