"""Per-request sampling parameters and what makes a request greedy. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.errors import InputError

GREEDY_TEMPERATURE = 1e-5
TOP_K_OFF = 2147483647
TOP_P_OFF = 1.0


@dataclass(frozen=True)
class SamplingParams:
    """What one request asks of the sampler.

    A request is greedy when temperature, top_k and top_p are all unset, or temperature is 0, top_k is 1 or top_p is 0.
    In a request that is sampled, an unset field takes its neutral value: temperature 1.0, top_k and top_p off.

    :param seed: key of the request's random numbers; with the position and purpose it fixes every draw.
    :param max_tokens: output cap in tokens.
    :param replay_lengths: tokens that each target step committed in a recorded run, in order, the context step's first
        token left out; for ``replay`` acceptance alone, see :mod:`specbench.engine.sampling.replay`. A smaller
        ``max_tokens`` cuts the recording.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_tokens: int = 128
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    replay_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"must be 0 or more, found {self.temperature}", where="sampling.temperature")
        if self.top_k is not None and self.top_k < 0:
            raise InputError(f"must be 0 (off) or more, found {self.top_k}", where="sampling.top_k")
        if self.top_p is not None and not 0.0 <= self.top_p <= 1.0:
            raise InputError(f"must lie in 0..1, found {self.top_p}", where="sampling.top_p")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"must lie in 0..2**63 - 1, found {self.seed}", where="sampling.seed")
        if self.max_tokens < 1:
            raise InputError(f"must be at least 1, found {self.max_tokens}", where="sampling.max_tokens")
        if self.replay_lengths and min(self.replay_lengths) < 1:
            raise InputError(
                f"a step commits at least 1 token, found {min(self.replay_lengths)}", where="sampling.replay_lengths"
            )

    @property
    def is_greedy(self) -> bool:
        """True when the argmax is taken."""
        unset = self.temperature is None and self.top_k is None and self.top_p is None
        return unset or self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    def normalized(self) -> tuple[float, int, float]:
        """(temperature, top_k, top_p) as one row of the sampler's buffers."""
        if self.is_greedy:
            return GREEDY_TEMPERATURE, TOP_K_OFF, TOP_P_OFF
        temperature = 1.0 if self.temperature is None else max(self.temperature, GREEDY_TEMPERATURE)
        return temperature, self.top_k or TOP_K_OFF, TOP_P_OFF if self.top_p is None else self.top_p
