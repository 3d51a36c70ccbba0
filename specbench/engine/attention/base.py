"""What the model asks of attention over the paged cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.kv_cache import KVCache


class AttentionOperator(ABC):
    """Causal attention with grouped KV heads; one instance an engine.

    Opaque to whoever records a step (:func:`specbench.device.recording.runtime_operator`): all that differs from step
    to step arrives through :meth:`prepare`, and lengths are read when it runs. Query head ``i`` reads KV head
    ``i // (num_heads // num_kv_heads)``.

    :param num_heads: query heads, a multiple of the cache's KV heads.
    """

    def __init__(self, cache: KVCache, num_heads: int) -> None:
        self.cache = cache
        self.num_heads = num_heads
        self.num_groups = num_heads // cache.num_kv_heads
        self.scale = float(cache.head_dim) ** -0.5

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in cls.__dict__:
            cls.forward = runtime_operator("attention")(cls.forward)  # type: ignore[method-assign]

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata) -> None:
        """Take over a step's metadata; on the device, before the first layer."""

    @abstractmethod
    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the step's keys and values to the cache, then attend.

        :param q: [T, num_heads, head_dim]; ``k`` and ``v`` [T, num_kv_heads, head_dim]; heads may be strided views.
        :returns: [T, num_heads * head_dim].
        """
