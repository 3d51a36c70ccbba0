"""YAML as version 1.2 reads it, on PyYAML's parser: on, off, yes and no are text, 1e-5 is a number.

A scenario is data, so the reader is small on purpose: no tags but the core schema's, no duplicate or exotic keys, no
merge keys, and bounds on size, depth and the number of values that aliases can grow into.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DIGITS = 30

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_RESOLVERS = (
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
)


class YamlError(ValueError):
    """Text that is not YAML a scenario may hold. ``line`` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass
class Document:
    """Plain data and, for each key path in it, the line it stands on."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """Composes nodes only; resolves plain scalars by YAML 1.2's core schema and bounds the depth."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute)
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"nested deeper than {MAX_DEPTH} levels", self.line + 1)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes block YAML that both 1.1 and 1.2 readers read back alike."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # These break lines in YAML 1.1; between double quotes they are escaped.
    style = '"' if any(char in text for char in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, list(_first))
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, list(_first))


def read_yaml(text: str) -> Document:
    """Parse one YAML document.

    :raises YamlError: not YAML, or YAML that a scenario may not hold.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise YamlError(f"larger than {MAX_BYTES // 1024} KiB, which no scenario needs to be", 1)
    node = _compose(text)
    builder = _Builder()
    data = builder.build(node, (), 0) if node is not None else None
    return Document(data, builder.lines)


def dump_yaml(data: Any) -> str:
    """Plain data as block YAML, keys in the order given."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(_problem_of(error), mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise YamlError(f"character {error.character!r} is not allowed in YAML", line) from None
    except (yaml.YAMLError, ValueError, OverflowError, IndexError, RecursionError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"not YAML ({error})", 1) from None
    return node


def _problem_of(error: yaml.MarkedYAMLError) -> str:
    """One line out of PyYAML's several."""
    problem = error.problem or "not YAML"
    if "expected a single document" in str(error):
        return "holds more than one YAML document (---); a scenario is one"
    return f"{error.context}, {problem}" if error.context else problem


class _Builder:
    """Turns nodes into plain data, noting lines, with a budget that aliases cannot exceed."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._values = 0

    def build(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        line = node.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            raise YamlError(f"holds more than {MAX_VALUES} values, aliases counted", line)
        if depth > MAX_DEPTH:
            raise YamlError(f"nested deeper than {MAX_DEPTH} levels", line)
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, line)
        raise YamlError(f"the tag {_short_tag(node.tag)} is not allowed: a scenario is plain data", line)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str | int, Any]:
        result: dict[str | int, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = _key(key_node, line)
            if key in result:
                first = self.lines[(*path, key)]
                raise YamlError(f"key {key!r} stands here and in line {first} of the same mapping", line)
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), depth + 1)
        return result


def _key(node: yaml.Node, line: int) -> str | int:
    scalar = node if isinstance(node, yaml.ScalarNode) else None
    key = _scalar(scalar, line) if scalar is not None else None
    if scalar is not None and key == "<<" and scalar.style is None:
        raise YamlError("merge keys (<<) left YAML with version 1.2; write the keys out, or use an alias", line)
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise YamlError("a key must be text or a whole number", line)
    return key


def _scalar(node: yaml.ScalarNode, line: int) -> Any:
    tag, text = node.tag.removeprefix(_TAG), node.value
    if tag == "str":
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            raise YamlError("text holds a character that no file name or prompt can hold", line)
        return text
    if tag == "null" and text.lower() in ("", "~", "null"):
        return None
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if tag == "int" and _INT.match(text):
        return _whole_number(text, line)
    if tag == "float" and _FLOAT.match(text):
        return _number(text)
    raise YamlError(f"{_short_tag(node.tag)} does not fit here: a scenario is plain data", line)


def _whole_number(text: str, line: int) -> int:
    if len(text) > MAX_DIGITS:
        raise YamlError(f"a number of more than {MAX_DIGITS} digits", line)
    base = {"0o": 8, "0x": 16}.get(text[:2].lower(), 10)
    return int(text[2:] if base != 10 else text, base)


def _number(text: str) -> float:
    lowered = text.lower()
    if lowered.endswith("inf"):
        return -math.inf if lowered.startswith("-") else math.inf
    return math.nan if lowered.endswith("nan") else float(text)


def _short_tag(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag


def to_plain(value: Any) -> Any:
    """``value`` with tuples as lists and mappings as dicts, fit for :func:`dump_yaml`."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value
