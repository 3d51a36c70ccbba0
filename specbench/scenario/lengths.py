"""How long sequences get: what a scenario asks for, what the model allows, and whether the two go together."""

from __future__ import annotations

from specbench.device.times import SIM
from specbench.engine.models.config import ModelConfig
from specbench.scenario.conflicts import SYNTHETIC, draft_len_of
from specbench.scenario.fields import MAX_TOKENS
from specbench.scenario.measure_schema import Windows
from specbench.scenario.places import Issue
from specbench.scenario.schema import Scenario, Workload
from specbench.scenario.windows import needed_seq_len

DEFAULT_LEN = 128
TEXT_SEQ_LEN = 4096
"""``max_seq_len`` of text kinds, whose prompts have no length before they are tokenized."""


def longest(length: int | tuple[int, int] | None) -> int:
    """The upper end of a length or a range of lengths, the default if it is null."""
    if length is None:
        return DEFAULT_LEN
    return length if isinstance(length, int) else length[1]


def default_seq_len(workload: Workload, limit: int) -> int:
    """``engine.max_seq_len`` where it is null; ``limit``: see :func:`length_limit`."""
    if workload.kind == SYNTHETIC:
        return longest(workload.isl) + longest(workload.osl)
    return min(TEXT_SEQ_LEN, limit)


def length_limit(model: ModelConfig, device: str) -> int:
    """Tokens a sequence may reach, the sliding window included (longer spans would need masks that are not built).

    A device that computes nothing has no use for positions, and so no limit by the model's.
    """
    if device == SIM:
        return MAX_TOKENS
    return min(model.max_position_embeddings, model.sliding_window or model.max_position_embeddings)


def find_length_issues(scenario: Scenario, model: ModelConfig) -> list[Issue]:
    """What is wrong with the lengths and token ids of a scenario that has no default left open."""
    workload, limit = scenario.workload, length_limit(model, scenario.engine.device)
    most = scenario.engine.max_seq_len or 0
    isl, osl = longest(workload.isl), longest(workload.osl)
    issues = []
    if scenario.measure.windows is not None:
        issues = _find_window_issues(scenario, scenario.measure.windows, limit)
    elif workload.kind == SYNTHETIC and isl + osl > limit:
        key = "isl" if isl >= osl else "osl"
        issues.append(
            Issue.at(f"workload.{key}", f"isl {isl} + osl {osl} = {isl + osl} tokens, the model's limit is {limit}")
        )
    elif most > limit:
        issues.append(Issue.at("engine.max_seq_len", f"found {most}; allowed: the model's limit, {limit}, or less"))
    elif workload.kind == SYNTHETIC and isl + osl > most:
        what = f"{most} tokens do not hold isl {isl} + osl {osl} = {isl + osl}"
        issues.append(Issue.at("engine.max_seq_len", what, f"set it to {isl + osl} or more, or to null"))
    elif osl >= most:
        issues.append(Issue.at("workload.osl", f"{osl} output tokens leave no room for a prompt in {most} tokens"))
    wrong = [token for token in scenario.sampling.stop_token_ids if token >= model.vocab_size]
    if wrong:
        issues.append(
            Issue.at("sampling.stop_token_ids", f"{wrong[0]} is not in the vocabulary, 0 to {model.vocab_size - 1}")
        )
    return issues


def _find_window_issues(scenario: Scenario, windows: Windows, limit: int) -> list[Issue]:
    needed, most = needed_seq_len(windows, draft_len_of(scenario)), scenario.engine.max_seq_len or 0
    what = f"contexts of {max(windows.kv_len)} tokens and what {windows.steps} steps may commit take {needed}"
    if needed > limit:
        return [Issue.at("measure.windows.kv_len", f"{what} tokens, the model's limit is {limit}")]
    if needed > most:
        hint = f"set it to {needed} or more, or to null"
        return [Issue.at("engine.max_seq_len", f"{what} tokens, and {most} are allowed", hint)]
    if most > limit:
        return [Issue.at("engine.max_seq_len", f"found {most}; allowed: the model's limit, {limit}, or less")]
    return []
