"""Time of a decoding step, by batch size, context length and dtype, with random weights.

    python benchmarks/step_time.py [--model smollm2-135m] [--batch 1,4,16] [--context 64,1024,4096]
                                   [--dtype bfloat16,float32] [--draft-len 0] [--steps 9] [--attention cpu-paged]

A step is the forward pass of every layer and the logits of every row; sampling and scheduling are not in it. The split
is timed in steps of its own: `linear` is every product with a weight, the head included, `attention` the attention
operator with its preparation and its writes to the cache, `other` the rest. Medians; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.config import ModelSpec
from specbench.engine.kv_cache import KVCache
from specbench.engine.models.linear import GatedLinear, Linear
from specbench.engine.models.llama import LlamaForCausalLM
from specbench.engine.models.loading import load_model
from specbench.registry import ATTENTION

TOKENS_PER_BLOCK = 32
WARMUP_STEPS = 4
CPU = torch.device("cpu")


@dataclass
class Stopwatch:
    """Seconds spent in wrapped calls."""

    seconds: float = 0.0

    def wrap(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return ``function`` with its time added to the watch."""

        def timed(*args: Tensor) -> Tensor:
            start = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - start
            return result

        return timed


@dataclass
class Split:
    """Where the time of a step goes, by wrapping the model's products and the attention operator."""

    linear: Stopwatch = field(default_factory=Stopwatch)
    attention: Stopwatch = field(default_factory=Stopwatch)

    def measure(self, model: LlamaForCausalLM, attention: AttentionOperator, step: Callable[[], None]) -> list[float]:
        """Run ``step`` once; return milliseconds of it in products, attention and the rest."""
        products: list[Linear | GatedLinear] = [model.head]
        for layer in model.layers:
            products += [layer.qkv, layer.output, layer.gate_up, layer.down]
        wrapped = [(product, name) for product in products for name in ("forward", "add_to") if hasattr(product, name)]
        for product, name in wrapped:
            setattr(product, name, self.linear.wrap(getattr(product, name)))
        for name in ("prepare", "forward"):
            setattr(attention, name, self.attention.wrap(getattr(attention, name)))
        start = time.perf_counter()
        step()
        total = time.perf_counter() - start
        for owner, name in (*wrapped, (attention, "prepare"), (attention, "forward")):
            delattr(owner, name)
        parts = (self.linear.seconds, self.attention.seconds, total - self.linear.seconds - self.attention.seconds)
        return [1e3 * part for part in parts]


class Decoder:
    """Decoding steps of a full batch, every request at the same context length."""

    def __init__(
        self, model: LlamaForCausalLM, attention_name: str, batch_size: int, context: int, draft_len: int
    ) -> None:
        self.model = model
        config = model.config
        num_rows = draft_len + 1
        columns = -(-(context + num_rows) // TOKENS_PER_BLOCK)
        cache = KVCache(
            config.num_layers,
            batch_size * columns,
            TOKENS_PER_BLOCK,
            config.num_kv_heads,
            config.head_dim,
            model.dtype,
            CPU,
        )
        # Memory that was never written reads faster than memory that was.
        for blocks in (*cache.keys, *cache.values):
            blocks.normal_()
        self.attention: AttentionOperator = ATTENTION.load(attention_name)(cache, num_heads=config.num_heads)
        positions = torch.arange(context - num_rows, context).repeat(batch_size)
        self.token_ids = torch.randint(config.vocab_size, positions.shape)
        self.metadata = AttentionMetadata(
            num_context=0,
            context_query_lens=[],
            context_kv_lens=[],
            num_generation=batch_size,
            rows_per_generation=num_rows,
            generation_kv_lens=torch.full((batch_size,), context),
            block_table=torch.arange(batch_size * columns, dtype=torch.int32).view(batch_size, columns),
            positions=positions,
        )

    def step(self) -> None:
        """Run one step."""
        self.attention.prepare(self.metadata)
        hidden = self.model.forward(self.token_ids, self.metadata.positions, self.attention)
        self.model.compute_logits(hidden)

    def time_step(self) -> float:
        """Run one step; return its milliseconds."""
        start = time.perf_counter()
        self.step()
        return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a preset")
    parser.add_argument("--batch", default="1,4,16")
    parser.add_argument("--context", default="64,1024,4096")
    parser.add_argument("--dtype", default="bfloat16,float32")
    parser.add_argument("--draft-len", type=int, default=0)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--attention", default="cpu-paged")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{options.model}, torch {torch.__version__}, {torch.get_num_threads()} threads, K = {options.draft_len}")
    header = ("batch", "context", "step ms", "linear", "attention", "other", "tok/s (K = 0 or all rejected)")
    print(f"{'dtype':9}", *(f"{name:>9}" for name in header))
    with torch.inference_mode():
        for dtype in options.dtype.split(","):
            measure_dtype(dtype, options)


def measure_dtype(dtype: str, options: argparse.Namespace) -> None:
    """Print one line for each batch size and context length."""
    loaded = load_model(ModelSpec(options.model, weights="random"), getattr(torch, dtype), CPU)
    model = loaded.model
    assert isinstance(model, LlamaForCausalLM)
    for context in map(int, options.context.split(",")):
        for batch_size in map(int, options.batch.split(",")):
            decoder = Decoder(model, options.attention, batch_size, context, options.draft_len)
            for _ in range(WARMUP_STEPS):
                decoder.step()
            step_ms = statistics.median(decoder.time_step() for _ in range(options.steps))
            splits = [Split().measure(model, decoder.attention, decoder.step) for _ in range(options.steps)]
            parts = [statistics.median(column) for column in zip(*splits, strict=True)]
            figures = (step_ms, *parts, 1e3 * batch_size / step_ms)
            print(f"{dtype:9} {batch_size:9} {context:9}", *(f"{value:9.1f}" for value in figures), flush=True)


if __name__ == "__main__":
    main()
