"""The result of ``vs_peers.py`` as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Result = dict[str, Any]


def render(result: Result) -> str:
    """All tables and what they stand on."""
    options = result["options"]
    lines = [
        "# Decode speed beside other engines",
        "",
        f"{options['model_name']}, greedy, threads: {options['threads']}, interleaved rounds: {options['rounds']}, "
        f"medians. {result['started_utc']}.",
        "",
        result["definition"],
        "",
        *_speeds(result),
        "",
        *_ratios(result),
        "",
        *_steps(result),
        "",
        *_equal_tokens(result),
        "- " + ", ".join(f"{name}: {version}" for name, version in result["versions"].items()),
    ]
    cpu = result["environment"].get("cpu") or {}
    lines.append(f"- {cpu.get('model', 'CPU unknown')}; the whole environment is in the JSON file beside this one.")
    return "\n".join(lines) + "\n"


def _speeds(result: Result) -> Iterator[str]:
    names = list(result["versions"])
    yield "| batch | in | out | " + " | ".join(f"{name} tok/s" for name in names) + " |"
    yield "|---:" * (3 + len(names)) + "|"
    for case in result["cases"]:
        cells = [f"{case['peers'][name]['tokens_per_s']:.1f}" if name in case["peers"] else "" for name in names]
        yield f"| {case['batch']} | {case['isl']} | {case['osl']} | " + " | ".join(cells) + " |"


def _ratios(result: Result) -> Iterator[str]:
    yield "| batch | in | ratio of decode speed | median | lowest | highest round |"
    yield "|---:|---:|---|---:|---:|---:|"
    for case in result["cases"]:
        for ratio in case["ratios"]:
            yield (
                f"| {case['batch']} | {case['isl']} | {ratio['of']} / {ratio['to']} | {ratio['median']:.2f} | "
                f"{ratio['low']:.2f} | {ratio['high']:.2f} |"
            )


def _steps(result: Result) -> Iterator[str]:
    yield "| batch | in | engine | ms a step | tokens a step | until the first tokens, s |"
    yield "|---:|---:|---|---:|---:|---:|"
    for case in result["cases"]:
        for name, peer in case["peers"].items():
            yield (
                f"| {case['batch']} | {case['isl']} | {name} | {peer['step_ms']:.2f} | {peer['tokens_per_step']:.2f} | "
                f"{peer['first_tokens_s']:.3f} |"
            )


def _equal_tokens(result: Result) -> Iterator[str]:
    for case in result["cases"]:
        if same := case["same_tokens"]:
            yield (
                f"- batch {case['batch']}, {case['isl']} in: {same['of']} and {same['to']} decode the same tokens in "
                f"{same['equal']} of {same['sequences']} sequences."
            )
