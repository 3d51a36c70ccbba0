"""A request and what the engine knows of it on the host. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.engine.sampling.params import SamplingParams


@dataclass(eq=False)
class Request:
    """One prompt and its growing output.

    ``output_token_ids`` never holds a token after the end (an end token itself is kept, as the last one).

    :param end_token_ids: ids that end this request; empty when the end of sequence is ignored.
    :param max_length: tokens, prompt included, at which the request ends.
    :param num_prefilled: tokens whose keys and values are in the cache or in flight, while the request is in context.
    :param in_context: True until the last chunk of its prompt has been scheduled.
    :param num_in_flight: generation steps launched whose tokens the host has not seen.
    :param accepted_lengths: tokens committed by each target step (context steps left out), bonus included.
    :param chunk_times_ns: ``perf_counter_ns`` at which each commit reached the host; ``chunk_sizes`` its tokens.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    end_token_ids: frozenset[int]
    max_length: int
    admitted_ns: int
    output_token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    slot: int | None = None
    in_context: bool = True
    num_prefilled: int = 0
    num_in_flight: int = 0
    num_preemptions: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    chunk_times_ns: list[int] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Committed tokens the host has seen, prompt included."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens to put in the cache before generation.

        A fresh prompt is prefilled whole and its last row samples. After a preemption the last committed token is
        left out: the next generation step carries it, exactly as it would have without the preemption.
        """
        return self.num_tokens - 1 if self.output_token_ids else len(self.prompt_token_ids)

    def prefill_tokens(self, start: int, end: int) -> Sequence[int]:
        """Token ids at positions ``start`` to ``end - 1`` of prompt and output."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        return (*self.prompt_token_ids[start:], *self.output_token_ids[max(start - num_prompt, 0) : end - num_prompt])

    def max_tokens_in_flight(self, rows: int) -> int:
        """Upper bound of the committed tokens, prompt included, once all that is in flight has run.

        :param rows: most tokens a step commits to a request, K + 1.
        """
        return self.num_tokens + self.num_in_flight * rows

    def commit(self, token_ids: Sequence[int], now_ns: int) -> int:
        """Append committed tokens up to the end of the request; return how many were kept."""
        kept = 0
        for token_id in token_ids:
            self.output_token_ids.append(token_id)
            kept += 1
            if token_id in self.end_token_ids:
                self.finish_reason = "stop"
                break
            if self.num_tokens >= self.max_length:
                self.finish_reason = "length"
                break
        self.chunk_times_ns.append(now_ns)
        self.chunk_sizes.append(kept)
        return kept

    def reset_for_preemption(self) -> None:
        """Go back to the state before the first chunk; committed tokens stay."""
        self.slot = None
        self.in_context = True
        self.num_prefilled = 0
        self.num_preemptions += 1
