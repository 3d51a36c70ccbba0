"""Decode speed of this engine beside transformers and llama.cpp: one run, rounds interleaved, medians and ratios.

    python benchmarks/vs_peers.py --out results/vs-peers

Every peer gets the same prompts, the same number of threads and a process of its own that idles while it is not its
turn. A round runs each peer once, in an order that rotates from round to round; a ratio is taken within its round.
llama.cpp takes part where ``llama_cpp`` can be imported (``--llama-python`` names the interpreter that has it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from peer_prompts import build_prompts
from peer_tables import render

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import find_model
from specbench.errors import SpecbenchError
from specbench.measure.environment import describe_environment

DEFINITION = (
    "tok/s = tokens committed after the moment when every sequence of the batch has its first token, divided by the "
    "time from that moment to the last token. Loading, prefill and the first tokens are outside. Greedy, end tokens "
    "ignored."
)


@dataclass(frozen=True)
class PeerSpec:
    """How to start one peer's worker."""

    engine: str
    dtype: str = "bfloat16"
    drafter: str = "none"
    draft_len: int = 0
    ngram: tuple[int, int] = (1, 3)
    """Shortest and longest match of a lookup, in tokens."""


PEERS = {
    "specbench bf16": PeerSpec("specbench"),
    "specbench bf16 ngram K=4": PeerSpec("specbench", drafter="ngram", draft_len=4),
    "specbench bf16 ngram+eagle3 K=4": PeerSpec("specbench", drafter="ngram+eagle3", draft_len=4, ngram=(2, 5)),
    "specbench f32": PeerSpec("specbench", dtype="float32"),
    "transformers bf16": PeerSpec("transformers"),
    "transformers f32": PeerSpec("transformers", dtype="float32"),
    "llama.cpp Q4_1": PeerSpec("llama.cpp", dtype="q4_1"),
}
RATIOS = (
    ("specbench bf16", "transformers bf16"),
    ("specbench bf16", "llama.cpp Q4_1"),
    ("specbench f32", "transformers f32"),
    ("specbench bf16 ngram K=4", "specbench bf16"),
    ("specbench bf16 ngram+eagle3 K=4", "specbench bf16"),
    ("specbench bf16 ngram+eagle3 K=4", "llama.cpp Q4_1"),
)
SAME_TOKENS = ("specbench f32", "transformers f32")


@dataclass(frozen=True)
class Case:
    """A batch of ``batch`` prompts of ``isl`` tokens, ``osl`` tokens decoded for each."""

    batch: int
    isl: int
    osl: int


class Worker:
    """A peer's process. Use as a context manager; :meth:`run` blocks until the answer is there."""

    def __init__(self, name: str, spec: PeerSpec, options: argparse.Namespace) -> None:
        self.name = name
        python = options.llama_python if spec.engine == "llama.cpp" else sys.executable
        # By its name: a head ships for a preset, not for a folder.
        models = {"llama.cpp": options.gguf, "specbench": options.model_name}
        command = [
            *(python, str(Path(__file__).with_name("peer_workers.py"))),
            *(spec.engine, "--model", str(models.get(spec.engine, options.model))),
            *("--dtype", spec.dtype, "--threads", str(options.threads)),
            *("--drafter", spec.drafter, "--draft-len", str(spec.draft_len), "--ngram", *map(str, spec.ngram)),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version = str(self._read()["version"])

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def run(self, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        """Decode and return the fields of the worker's ``Timing``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "num_tokens": num_tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run_case(case: Case, workers: Sequence[Worker], options: argparse.Namespace) -> dict[str, Any]:
    """Warm every worker up on the case, then run the rounds."""
    prompts = build_prompts(options.model, case.batch, case.isl)
    answers: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for worker in workers:
        worker.run(prompts, case.osl)
    for number in range(options.rounds):
        turn = number % len(workers)
        for worker in (*workers[turn:], *workers[:turn]):
            answers[worker.name].append(worker.run(prompts, case.osl))
        say(f"batch {case.batch}, {case.isl} in: round {number + 1} of {options.rounds}")
    return {
        **vars(case),
        "peers": {name: summarize(runs) for name, runs in answers.items()},
        "ratios": list(compare(answers)),
        "same_tokens": compare_tokens(answers),
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one peer in one case, and every round's figure."""
    rates = [run["decode_tokens"] / run["decode_s"] for run in runs]
    steps = [run["decode_s"] / run["decode_steps"] * 1e3 for run in runs]
    return {
        "tokens_per_s": statistics.median(rates),
        "step_ms": statistics.median(steps),
        "first_tokens_s": statistics.median(run["first_s"] for run in runs),
        "tokens_per_step": runs[0]["decode_tokens"] / runs[0]["decode_steps"],
        "rounds_tokens_per_s": rates,
    }


def compare(answers: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Ratios of decode speed, each within its round."""
    for ours, theirs in RATIOS:
        if ours not in answers or theirs not in answers:
            continue
        ratios = [
            (a["decode_tokens"] / a["decode_s"]) / (b["decode_tokens"] / b["decode_s"])
            for a, b in zip(answers[ours], answers[theirs], strict=True)
        ]
        yield {
            "of": ours,
            "to": theirs,
            "median": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
        }


def compare_tokens(answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    """How many sequences two peers that should agree decoded alike, to the last token."""
    if not set(SAME_TOKENS) <= set(answers):
        return None
    ours, theirs = (answers[name][-1]["token_ids"] for name in SAME_TOKENS)
    return {
        "of": SAME_TOKENS[0],
        "to": SAME_TOKENS[1],
        "sequences": len(ours),
        "equal": sum(a == b for a, b in zip(ours, theirs, strict=True)),
    }


def parse_options() -> argparse.Namespace:
    """Read the command line and find the model's files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for vs_peers.md and vs_peers.json")
    parser.add_argument("--model", default="smollm2-135m", help="preset that was pulled, or a checkpoint directory")
    parser.add_argument("--gguf", type=Path, help="for llama.cpp; default: the .gguf file in the model's directory")
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that can import llama_cpp")
    parser.add_argument("--peers", help=f"comma-separated; default: all of {', '.join(PEERS)}")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--isl", type=int, default=64)
    parser.add_argument("--osl", type=int, default=40)
    parser.add_argument(
        "--contexts", default="", help="more prompt lengths, at batch 1, for specbench alone: 1024,4096"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.model_name = options.model
    try:
        location = find_model(ModelSpec(options.model))
    except SpecbenchError as error:
        parser.error(str(error))
    if location.kind != "directory" or location.path is None:
        parser.error(f"{options.model} is not a checkpoint directory; try: specbench pull {options.model}")
    options.model = location.path
    options.gguf = options.gguf or next(iter(sorted(Path(options.model).glob("*.gguf"))), None)
    names = options.peers.split(",") if options.peers else list(PEERS)
    if unknown := set(names) - set(PEERS):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    options.peers = [name for name in names if PEERS[name].engine != "llama.cpp" or has_llama(options)]
    return options


def has_llama(options: argparse.Namespace) -> bool:
    """True when llama.cpp can take part; else one line says why not."""
    if options.gguf is None:
        say("llama.cpp is left out: the model's directory has no .gguf file, and --gguf names none")
        return False
    probe = subprocess.run([options.llama_python, "-c", "import llama_cpp"], capture_output=True, check=False)
    if probe.returncode != 0:
        say(f"llama.cpp is left out: {options.llama_python} cannot import llama_cpp (--llama-python)")
    return probe.returncode == 0


def say(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Start the workers, run every case, write both files."""
    options = parse_options()
    started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    environment = describe_environment()
    cases = [Case(int(batch), options.isl, options.osl) for batch in options.batches.split(",")]
    contexts = [Case(1, int(length), options.osl) for length in options.contexts.split(",") if length]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, PEERS[name], options)) for name in options.peers]
        own = [worker for worker in workers if PEERS[worker.name].engine == "specbench"]
        results = [run_case(case, workers, options) for case in cases]
        results += [run_case(case, own, options) for case in contexts if own]
        versions = {worker.name: worker.version for worker in workers}
    kept = ("model_name", "threads", "rounds", "peers")
    result = {
        "definition": DEFINITION,
        "started_utc": started,
        "options": {name: getattr(options, name) for name in kept},
        "versions": versions,
        "cases": results,
        "environment": environment,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "vs_peers.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (options.out / "vs_peers.md").write_text(render(result), encoding="utf-8")
    print(render(result))


if __name__ == "__main__":
    main()
