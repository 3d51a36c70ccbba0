"""One inference engine in a process of its own, for ``vs_peers.py``: JSON lines in, JSON lines out.

Thread pools of different engines disturb each other inside one process, so each has its own and idles while it is not
its turn. This file imports only what the chosen peer needs: a peer may live in another Python's environment.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from typing import Any, NamedTuple, Protocol


class Timing(NamedTuple):
    """One run over a batch of prompts of equal length.

    ``first_s``: from the start until every sequence has its first token. ``decode_s``: from there to the last token of
    all. ``decode_tokens``: tokens committed in ``decode_s``. ``decode_steps``: target forwards in it.
    """

    first_s: float
    decode_s: float
    decode_tokens: int
    decode_steps: int
    token_ids: list[list[int]]


class Peer(Protocol):
    """What a worker does with its engine."""

    version: str

    def run(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        """Decode ``num_tokens`` greedily for every prompt, end tokens ignored."""
        ...


class SpecbenchPeer:
    """The engine of this repository. The model is loaded once; the engine is built for each shape of batch."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        import specbench
        from specbench.engine.config import ModelSpec
        from specbench.engine.models.loading import load_model

        torch.set_num_threads(options.threads)
        self.version = specbench.__version__
        self._options = options
        self._spec = ModelSpec(options.model)
        self._loaded = load_model(self._spec, getattr(torch, options.dtype), torch.device("cpu"))
        self._engine: Any = None
        self._shape: tuple[int, int] | None = None

    def run(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        from specbench.engine.sampling.params import SamplingParams

        engine = self._engine_for(len(prompts), len(prompts[0]) + num_tokens)
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        engine.drain_steps()
        start_ns = time.perf_counter_ns()
        requests = [engine.add_request(prompt, params) for prompt in prompts]
        while engine.has_work:
            engine.step()
        first_ns = max(request.chunk_times_ns[0] for request in requests)
        last_ns = max(request.chunk_times_ns[-1] for request in requests)
        decode_tokens = sum(
            size
            for request in requests
            for at_ns, size in zip(request.chunk_times_ns, request.chunk_sizes, strict=True)
            if at_ns > first_ns
        )
        steps = sum(1 for step in engine.drain_steps() if step.output_ns > first_ns)
        token_ids = [list(request.output_token_ids) for request in requests]
        return Timing((first_ns - start_ns) / 1e9, (last_ns - first_ns) / 1e9, decode_tokens, steps, token_ids)

    def _engine_for(self, batch_size: int, length: int) -> Any:
        if self._shape != (batch_size, length):
            if self._engine is not None:
                self._engine.shutdown()
            self._engine, self._shape = self._build(batch_size, length), (batch_size, length)
        return self._engine

    def _build(self, batch_size: int, length: int) -> Any:
        from specbench.engine.build import build_engine
        from specbench.engine.config import DrafterSpec, EngineConfig, positions_for

        options = self._options
        shortest, longest = options.ngram
        drafter = DrafterSpec(options.drafter, options.draft_len, min_ngram=shortest, max_ngram=longest)
        positions = positions_for(length, drafter.max_draft_len, drafter.num_ahead)
        config = EngineConfig(
            model=self._spec,
            device="cpu",
            max_seq_len=length,
            max_batch_size=batch_size,
            num_blocks=batch_size * (-(-positions // 32) + 1),
            dtype=options.dtype,
            num_threads=options.threads,
            drafter=drafter,
        )
        return build_engine(config, loaded=self._loaded)


class TransformersPeer:
    """``generate`` of Hugging Face transformers with its default attention and cache."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        transformers: Any = importlib.import_module("transformers")
        torch.set_num_threads(options.threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.version = transformers.__version__
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=getattr(torch, options.dtype)
        ).eval()
        self._model.generation_config.eos_token_id = None

    def run(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        torch = self._torch
        times: list[float] = []
        never = torch.zeros(len(prompts), dtype=torch.bool)

        def note_time(input_ids: Any, scores: Any, **_: Any) -> Any:
            del input_ids, scores
            times.append(time.perf_counter())
            return never

        token_ids = torch.tensor(prompts)
        with torch.inference_mode():
            start = time.perf_counter()
            output = self._model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                pad_token_id=0,
                stopping_criteria=[note_time],
            )
        steps = len(times) - 1
        generated = output[:, token_ids.shape[1] :].tolist()
        return Timing(times[0] - start, times[-1] - times[0], steps * len(prompts), steps, generated)


class LlamaCppPeer:
    """llama.cpp through its batch interface: one ``llama_decode`` a step over all sequences, argmax of its logits."""

    def __init__(self, options: argparse.Namespace) -> None:
        import numpy as np

        llama_cpp: Any = importlib.import_module("llama_cpp")
        self.version = llama_cpp.__version__
        self._np = np
        self._llama = llama_cpp
        self._threads = options.threads
        # Loading reports every tensor; the callback must outlive the library's use of it.
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            options.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {options.model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._batch: Any = None
        self._shape: tuple[int, int] | None = None

    def run(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        size, length = len(prompts), len(prompts[0])
        self._prepare(size, length + num_tokens, length)
        start = time.perf_counter()
        rows = [
            (token, position, sequence) for sequence, ids in enumerate(prompts) for position, token in enumerate(ids)
        ]
        last_rows = [(sequence + 1) * length - 1 for sequence in range(size)]
        tokens = self._step(rows, last_rows)
        first = time.perf_counter()
        outputs = [[token] for token in tokens]
        for position in range(length, length + num_tokens - 1):
            rows = [(token, position, sequence) for sequence, token in enumerate(tokens)]
            tokens = self._step(rows, list(range(size)))
            for output, token in zip(outputs, tokens, strict=True):
                output.append(token)
        last = time.perf_counter()
        return Timing(first - start, last - first, size * (num_tokens - 1), num_tokens - 1, outputs)

    def _prepare(self, size: int, length: int, prompt_length: int) -> None:
        llama = self._llama
        if self._shape != (size, length):
            if self._context is not None:
                llama.llama_batch_free(self._batch)
                llama.llama_free(self._context)
            params = llama.llama_context_default_params()
            # Rounded up: each sequence gets an equal share of the cells.
            params.n_ctx = size * (-(-length // 256) * 256)
            params.n_batch = max(512, size * prompt_length)
            params.n_seq_max = size
            params.n_threads = params.n_threads_batch = self._threads
            self._context = llama.llama_init_from_model(self._model, params)
            if not self._context:
                raise SystemExit("llama.cpp could not make a context")
            self._batch = llama.llama_batch_init(size * prompt_length, 0, 1)
            self._shape = (size, length)
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)

    def _step(self, rows: list[tuple[int, int, int]], wanted: list[int]) -> list[int]:
        batch, llama = self._batch, self._llama
        batch.n_tokens = len(rows)
        for row, (token, position, sequence) in enumerate(rows):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = 0
        for row in wanted:
            batch.logits[row] = 1
        status = llama.llama_decode(self._context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status}")
        return [int(self._logits(row).argmax()) for row in wanted]

    def _logits(self, row: int) -> Any:
        pointer = self._llama.llama_get_logits_ith(self._context, row)
        return self._np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))


PEERS: dict[str, type[Any]] = {
    "specbench": SpecbenchPeer,
    "transformers": TransformersPeer,
    "llama.cpp": LlamaCppPeer,
}


def main() -> None:
    """Answer one JSON line per run until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=PEERS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--draft-len", type=int, default=0)
    parser.add_argument("--ngram", type=int, nargs=2, default=(1, 3))
    options = parser.parse_args()
    # Libraries print to standard output; only answers may go to the pipe the parent reads.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Peer = PEERS[options.engine](options)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"version": peer.version})
    for line in sys.stdin:
        request = json.loads(line)
        answer(peer.run(request["prompts"], request["num_tokens"])._asdict())


if __name__ == "__main__":
    main()
