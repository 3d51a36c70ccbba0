"""From a resolved scenario to the requests that are sent: prompts, parameters, seeds, labels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.device.times import SIM
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import ModelNotFoundError, PromptTooLongError
from specbench.measure.driver import PlannedRequest
from specbench.measure.labels import FORCED, REPLAYED, join_label
from specbench.scenario.resolve import workload_settings
from specbench.scenario.schema import Scenario
from specbench.workloads.base import (
    SYNTHETIC,
    Conversation,
    ConversationPrompter,
    Workload,
    build_workload,
)
from specbench.workloads.tokenizer import Tokenizer

NOT_JUDGED = {"forced": FORCED, "replay": REPLAYED}
"""Label of content by the mode of acceptance that does not look at it."""
MADE_UP_NOTE = "SIMULATED: no token was computed, ids are made up by request seed and position"
RANDOM_WEIGHTS_NOTE = "seeded random weights: outputs are noise, and so is their acceptance"
WARMUP_OUTPUT_TOKENS = 32
"""Cap on a warm-up request's output: enough to run every kind of step several times."""


@dataclass(frozen=True)
class Content:
    """A workload ready to be sent.

    :param label: see :mod:`specbench.measure.labels`.
    :param note: what else a reader of acceptance figures must know.
    """

    conversations: Sequence[Conversation]
    prompter: ConversationPrompter
    tokenizer: Tokenizer | None
    label: str
    note: str | None = None


def build_content(scenario: Scenario, vocab_size: int, tokenizer_path: Path | None) -> Content:
    """Build the workload of a resolved scenario with the model's tokenizer.

    :param tokenizer_path: where the model's tokenizer files are; None: seeded random weights or a bare
        checkpoint.
    :raises WorkloadError: the data or its settings cannot be used.
    """
    kind = scenario.workload.kind
    tokenizer = load_tokenizer(scenario, vocab_size, tokenizer_path)
    workload: Workload = build_workload(workload_settings(scenario), vocab_size=vocab_size, tokenizer=tokenizer)
    random_weights = scenario.model.weights == "random"
    label: str = workload.label
    if scenario.acceptance.mode in NOT_JUDGED:
        label = NOT_JUDGED[scenario.acceptance.mode]
    elif random_weights:
        label = SYNTHETIC
    note = RANDOM_WEIGHTS_NOTE if random_weights and kind != "random_tokens" else None
    simulated = scenario.engine.device == SIM
    label = join_label(label, simulated=simulated, synthetic_cache=scenario.measure.windows is not None)
    note = MADE_UP_NOTE if simulated else note
    return Content(workload.conversations(), ConversationPrompter(tokenizer), tokenizer, label, note)


def load_tokenizer(scenario: Scenario, vocab_size: int, path: Path | None) -> Tokenizer | None:
    """The model's tokenizer; the byte-level stand-in for random weights; None where there is none and none is needed.

    Random ids have a use for it too: they leave out its control tokens.
    """
    if scenario.workload.kind == "random_tokens":
        with suppress(ModelNotFoundError):
            return Tokenizer.load(path) if path is not None else None
        return None
    if path is not None:
        return Tokenizer.load(path)
    return Tokenizer.byte_level(vocab_size) if scenario.model.weights == "random" else None


class ContentSource:
    """The requests of one trial: see :class:`specbench.measure.driver.RequestSource`.

    :param params: what every request shares; its seed is the trial's, from which each request's own is
        derived.
    """

    def __init__(self, content: Content, params: SamplingParams) -> None:
        self._content = content
        self._params = params

    @property
    def num_turns(self) -> list[int]:
        """Turns of each conversation."""
        return [conversation.num_turns for conversation in self._content.conversations]

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """The request of one turn, with its own seed and output cap."""
        chosen = self._content.conversations[conversation]
        prompt = self._content.prompter.prompt_for(chosen, turn, previous_outputs)
        params = replace(
            self._params,
            seed=chosen.request_seed(turn, self._params.seed),
            max_tokens=chosen.output_len or self._params.max_tokens,
        )
        return PlannedRequest(chosen.request_id(turn), conversation, turn, chosen.category, prompt, params)


class WarmUpSource:
    """``count`` first turns of the same content with short outputs, taken round and round."""

    def __init__(self, source: ContentSource, count: int) -> None:
        self._source = source
        self._count = count

    @property
    def num_turns(self) -> list[int]:
        """One turn each."""
        return [1] * self._count

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        """A first turn of the content, renamed and capped."""
        planned = self._source.build(conversation % len(self._source.num_turns), turn, previous_outputs)
        params = replace(planned.params, max_tokens=min(planned.params.max_tokens, WARMUP_OUTPUT_TOKENS))
        return replace(planned, request_id=f"warm-up/{conversation}", conversation=conversation, params=params)


def base_params(scenario: Scenario, tokenizer: Tokenizer | None, seed: int) -> SamplingParams:
    """What all requests of a scenario share; the tokenizer's end tokens end a request as the model's do."""
    sampling = scenario.sampling
    ends = tuple(sampling.stop_token_ids)
    if tokenizer is not None and not sampling.ignore_eos:
        ends = tuple(dict.fromkeys((*ends, *tokenizer.eos_token_ids)))
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=seed,
        ignore_eos=bool(sampling.ignore_eos),
        stop_token_ids=ends,
    )


def require_fit(source: ContentSource, max_seq_len: int) -> None:
    """Refuse a first turn that leaves no room for an output token, before anything is measured.

    Later turns depend on the answers: one that does not fit fails alone, and the gate on requests says so.

    :raises PromptTooLongError: names the longest prompt and what it needs.
    """
    planned = [source.build(conversation, 0, ()) for conversation in range(len(source.num_turns))]
    longest = max(planned, key=lambda request: len(request.prompt_token_ids))
    tokens = len(longest.prompt_token_ids)
    if tokens >= max_seq_len:
        raise PromptTooLongError(
            f"the prompt of {longest.request_id} has {tokens} tokens, and max_seq_len is {max_seq_len}",
            where="engine.max_seq_len",
            hint=f"--set engine.max_seq_len={tokens + longest.params.max_tokens}",
        )
