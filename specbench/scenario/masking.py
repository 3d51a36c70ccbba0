"""Masking of secrets in what reaches a result: credentials in URLs, tokens by their form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
NAMES_OF_FILES = (
    ("model", "source"),
    ("drafter", "model"),
    ("workload", "path"),
    ("acceptance", "source"),
    ("process", "python"),
    ("process", "worktree"),
)

_NAMES = "token|key|secret|password|passwd|pwd|signature|sig|credential|auth"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_USERINFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s?#]+@", re.IGNORECASE)
_PARAMETER = re.compile(rf"(?P<name>[?&;][\w.-]*(?:{_NAMES})[\w.-]*=)[^&;#\s'\"]+", re.IGNORECASE)
_BEARER = re.compile(r"(?P<name>authorization['\"]?\s*[:=]\s*['\"]?\w+\s+)[\w.~+/=-]+", re.IGNORECASE)
_TOKEN = re.compile(r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|AKIA[A-Z0-9]{16})\b")


def mask(text: str) -> str:
    """Return ``text`` with every secret in it replaced by ``***``."""
    text = _USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _PARAMETER.sub(rf"\g<name>{MASK}", text)
    text = _BEARER.sub(rf"\g<name>{MASK}", text)
    return _TOKEN.sub(MASK, text)


def mask_all(data: Any) -> Any:
    """:func:`mask` every string in nested dictionaries and lists, keys left alone."""
    if isinstance(data, str):
        return mask(data)
    if isinstance(data, Mapping):
        return {key: mask_all(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [mask_all(item) for item in data]
    return data


def mask_scenario(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved scenario in plain data, secrets masked, as results keep it and as it is measured.

    Names of models and files stay as they are unless they are URLs: a folder may be called anything, and a run that is
    resumed must find it.
    """
    masked: dict[str, Any] = mask_all(scenario)
    for section, key in NAMES_OF_FILES:
        name = (scenario.get(section) or {}).get(key)
        if isinstance(name, str) and "://" not in name:
            masked[section][key] = name
    return masked


def is_secret(name: str, value: str) -> bool:
    """True when an environment variable looks like one that no result may hold, by its name or by its value."""
    return _SECRET_NAME.search(name) is not None or mask(value) != value
