"""Typed access to the keys of a ``config.json``. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specbench.errors import CheckpointError


class ConfigReader:
    """Typed access to a config: a wrong type or a missing key is an error that names the key."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.defaults = defaults
        self.where = where

    def get(self, key: str) -> Any:
        """The value, or the family's default."""
        return self.config[key] if key in self.config else self.defaults.get(key)

    def fail(self, what: str, hint: str | None = None) -> CheckpointError:
        """The error to raise, which names the file."""
        return CheckpointError(what, where=self.where, hint=hint)

    def integer(self, key: str, fallback: int | None = None) -> int:
        """A positive integer; null or missing gives ``fallback``."""
        value = self.get(key)
        value = fallback if value is None else value
        if value is None:
            raise self.fail(f"key {key!r} is missing", "fetch the model's config.json again")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{key} must be a positive integer, found {value!r}")
        return value

    def number(self, key: str) -> float:
        """A positive, finite number."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.fail(f"{key} must be a positive number, found {value!r}")
        return float(value)

    def boolean(self, key: str) -> bool:
        """True or false; null or missing is false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(f"{key} must be true or false, found {value!r}")
        return bool(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """An id, a list of ids, or null."""
        value = self.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in values):
            raise self.fail(f"{key} must be a token id or a list of them, found {value!r}")
        return tuple(item for item in values if item >= 0)
