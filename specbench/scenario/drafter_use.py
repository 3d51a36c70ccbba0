"""Which keys of ``drafter`` a drafter has a use for, and so what stays of them where another one is named."""

from __future__ import annotations

from typing import Any

from specbench.engine.config import drafter_parts
from specbench.engine.drafters.declaration import Role, role_of
from specbench.engine.tree_spec import drafts_trees
from specbench.registry import DRAFTERS

NO_DRAFTER = "none"
LOOKUP_KEYS = ("max_ngram", "min_ngram")


def has_use(name: Any, key: str) -> bool:
    """Whether the drafter ``name``, a pair or one alone, reads ``drafter.key``.

    A name that no registry has, or a value that is none, is taken to read every key: what it is, is said elsewhere.
    """
    parts = drafter_parts(name) if isinstance(name, str) else ()
    if not parts or not all(part in DRAFTERS for part in parts):
        return True
    roles = {role_of(part) for part in parts}
    if key == "model":
        return Role.MODEL in roles
    if key == "tree":
        return drafts_trees(name)
    if key in LOOKUP_KEYS:
        return Role.LOOKUP in roles
    return key == "name" or roles != {Role.NOTHING}


def is_superseded(path: tuple[str | int, ...], value: Any, key: str) -> bool:
    """Whether setting ``path`` to ``value`` leaves nothing of what the scenario says of ``drafter.key`` before.

    Naming a drafter drops what it has no use for. A tree brings K with it, which is its depth.
    """
    if path in (("drafter",), ("drafter", "name")):
        return not has_use(value, key)
    return path[:2] == ("drafter", "tree") and value is not None and key == "draft_len"
