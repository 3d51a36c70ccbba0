"""Train a draft head on answered prompts.

    python benchmarks/heads/train.py eagle3|mtp OUT SHARDS_DIRECTORY [SHARDS_DIRECTORY ...] [--tokens 10_000_000]

Chains of draft steps are unrolled as they will run: each step goes on from the head's own hidden state, with the
target's tokens. The loss is the cross entropy with the target's distribution over the draft vocabulary; step ``j``
weighs ``decay ** j``. A loss token is one prediction of one step. OUT gets the head in its public format,
``train.jsonl`` and ``training.pt``, from which the same command goes on; the learning rate falls to its end at
``--tokens`` loss tokens. Shards may still be arriving.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import Formatter, existing, head_directory
from batches import Batch, Reader
from evaluate import acceptance_lengths
from head_building import build_head, fit_fusion, start_from
from head_config import KINDS, TargetParts, config_for_target, read_target, save_head
from head_modules import DraftHead
from plan import PLAN_HELP, Plan, make_optimizers
from products import Likeliest, likeliest_tokens, soft_loss
from shards import list_shards, read_answer_tokens
from target import AUX_LAYERS
from torch import Tensor

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import find_model


class Trainer:
    """A head, its optimizers and how far they are."""

    def __init__(self, head: DraftHead, target: TargetParts, plan: Plan) -> None:
        self.head, self.plan = head, plan
        self.output = target.output[head.draft_ids.cpu()].to(head.draft_ids.device)
        self.optimizers = make_optimizers(head, plan)
        self.tokens, self.updates, self.seconds = 0, 0, 0.0

    def losses(self, batch: Batch) -> tuple[Tensor, list[float], int]:
        """Return the weighted mean loss, the mean loss of each step, and the loss tokens."""
        likeliest, place = self._targets(batch)
        parts: list[Tensor] = []
        counts: list[int] = []
        for step, out in enumerate(
            self.head.unroll(batch, self.plan.unroll, lambda s, _: batch.tokens_at(batch.bases + s + 1))
        ):
            wanted = self.head.draft_of[batch.tokens_at(batch.bases + step + 2)]
            valid = (batch.is_predicted(step) & (wanted >= 0)).nonzero(as_tuple=True)
            index = place[valid[0], batch.bases[valid] + step + 1]
            targets = Likeliest(likeliest.ids[index], likeliest.shares[index])
            parts.append(soft_loss(out[valid], self.head.output_weight(), targets))
            counts.append(len(index))
        weights = [self.plan.decay**step for step in range(len(parts))]
        scale = sum(weight * count for weight, count in zip(weights, counts, strict=True))
        total = torch.stack([part * weight for part, weight in zip(parts, weights, strict=True)]).sum() / max(
            1.0, scale
        )
        means = [float(part.detach()) / max(1, count) for part, count in zip(parts, counts, strict=True)]
        return total, means, sum(counts)

    def _targets(self, batch: Batch) -> tuple[Likeliest, Tensor]:
        """The target's distributions at positions from the first base + 1 on, and where [B, S] each is."""
        positions = torch.arange(batch.states.shape[1], device=batch.bases.device)
        wanted = (positions > batch.bases[:, :1]) & (positions < batch.lengths.unsqueeze(1) - 1)
        place = wanted.flatten().cumsum(0).view(wanted.shape) - 1
        return likeliest_tokens(
            batch.states[:, :, -1][wanted], self.output, min(self.plan.top_k, len(self.output))
        ), place

    def update(self, batch: Batch) -> dict[str, Any]:
        """Take one step; return what to log."""
        began = time.perf_counter()
        factor = self.plan.factor(self.tokens)
        total, means, count = self.losses(batch)
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.plan.clip)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.tokens += count
        self.updates += 1
        self.seconds += time.perf_counter() - began
        return {"loss": float(total.detach()), "by_step": means, "norm": float(norm), "count": count}

    def state(self) -> dict[str, Any]:
        """What a run goes on from."""
        return {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": (self.tokens, self.updates, self.seconds),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.head.load_state_dict(state["head"])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self.tokens, self.updates, self.seconds = state["progress"]


def choose_draft_ids(directories: Iterable[Path], size: int, vocab_size: int) -> Tensor:
    """The ``size`` most frequent answer tokens, in rising order."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for directory in directories:
        for path in list_shards(directory):
            counts += np.bincount(np.concatenate(read_answer_tokens(path)), minlength=vocab_size)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


class Run:
    """A training run on disk."""

    def __init__(self, trainer: Trainer, reader: Reader, out: Path, device: torch.device) -> None:
        self._trainer, self._reader, self._out, self._device = trainer, reader, out, device
        self._checkpoint = out / "training.pt"

    def resume(self) -> bool:
        """Restore the last checkpoint; return whether there is one."""
        if not self._checkpoint.exists():
            return False
        held = torch.load(self._checkpoint, map_location=self._device, weights_only=False)
        self._trainer.restore(held["trainer"])
        self._reader.restore(held["reader"])
        return True

    def first_batches(self) -> Iterator[Batch]:
        """The batches of a first pool; they count as used."""
        return (batch.to(self._device) for batch in self._reader.pool(self._trainer.plan.pool_shards))

    def log(self, entry: dict[str, Any]) -> None:
        """Append a line to ``train.jsonl`` and print it."""
        trainer = self._trainer
        line = {"tokens": trainer.tokens, "updates": trainer.updates, "seconds": round(trainer.seconds, 1), **entry}
        with (self._out / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    def train_pool(self) -> None:
        """Train on the next pool of shards and write a checkpoint."""
        trainer = self._trainer
        entries = [trainer.update(batch.to(self._device)) for batch in self._reader.pool(trainer.plan.pool_shards)]
        size = len(entries)
        by_step = [sum(entry["by_step"][step] for entry in entries) / size for step in range(trainer.plan.unroll)]
        self.log(
            {
                "loss": round(sum(entry["loss"] for entry in entries) / size, 4),
                "by_step": [round(loss, 3) for loss in by_step],
                "norm": round(sum(entry["norm"] for entry in entries) / size, 3),
                "factor": round(trainer.plan.factor(trainer.tokens), 3),
                "most_uses": self._reader.most_uses,
            }
        )
        self.save()

    def save(self) -> None:
        """Write the head and what the run goes on from."""
        trainer = self._trainer
        save_head(self._out, trainer.head.config, trainer.head.tensors())
        whole = {"trainer": trainer.state(), "reader": self._reader.state(), "draft_ids": trainer.head.draft_ids.cpu()}
        torch.save(whole, self._checkpoint.with_suffix(".part"))
        self._checkpoint.with_suffix(".part").replace(self._checkpoint)

    def evaluate(self, num_answers: int) -> None:
        """Log acceptance on held-out greedy answers."""
        answers = [answer for answer in self._reader.held_out() if not answer.is_sampled][:num_answers]
        if answers:
            lengths = acceptance_lengths(self._trainer.head, answers, (3, 4, 5))
            self.log({"held_out": {str(length): round(mean, 4) for length, mean in lengths.items()}})


def read_arguments() -> argparse.Namespace:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("out", type=Path, help="directory of the head and of what training goes on from")
    parser.add_argument("shards", type=existing, nargs="+", help="directories that answers.py wrote")
    for name, default in asdict(Plan(tokens=10_000_000)).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=PLAN_HELP[name])
    parser.add_argument(
        "--init", type=head_directory, help="head to start from, with a vocabulary and a schedule of its own"
    )
    parser.add_argument("--fit-offset", type=int, default=1, help="see head_building.fit_fusion; -1: do not fit")
    parser.add_argument("--batch-texts", type=int, default=8, help="answers an update")
    parser.add_argument("--draft-vocab", type=int, default=8192, help="draft tokens")
    parser.add_argument("--held-out", type=int, default=1, help="shards, from the first, to measure on")
    parser.add_argument("--evaluate-every", type=int, default=8, help="pools")
    parser.add_argument("--max-seconds", type=float, help="end after these, at the next pool")
    parser.add_argument("--model", default="smollm2-135m", help="the target: preset or checkpoint directory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU")
    parser.add_argument("--seed", type=int, default=0, help="of the order of texts and of fresh weights")
    return parser.parse_args()


def main() -> None:
    """See the module."""
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    directory = find_model(ModelSpec(arguments.model)).path
    assert directory is not None
    config = config_for_target(arguments.kind, directory, draft_vocab_size=arguments.draft_vocab, aux_layers=AUX_LAYERS)
    checkpoint = arguments.out / "training.pt"
    if checkpoint.exists():
        draft_ids = torch.load(checkpoint, map_location="cpu", weights_only=False)["draft_ids"]
    else:
        draft_ids = choose_draft_ids(arguments.shards, arguments.draft_vocab, config.vocab_size)
    target, device = read_target(directory), torch.device(arguments.device)
    plan = Plan(**{name: getattr(arguments, name) for name in asdict(Plan(tokens=1))})
    trainer = Trainer(build_head(config, target, draft_ids).to(device), target, plan)
    reader = Reader(
        arguments.shards, num_held_out=arguments.held_out, batch_texts=arguments.batch_texts, seed=arguments.seed
    )
    run = Run(trainer, reader, arguments.out, device)
    if not run.resume():
        if arguments.init is not None:
            start_from(trainer.head, arguments.init)
        elif arguments.fit_offset >= 0:
            fit_fusion(trainer.head, run.first_batches(), target.final_norm.to(device), offset=arguments.fit_offset)
    run.save()
    began, pools = time.perf_counter(), 0
    while trainer.tokens < plan.tokens:
        run.train_pool()
        pools += 1
        if pools % arguments.evaluate_every == 0:
            run.evaluate(48)
        if arguments.max_seconds is not None and time.perf_counter() - began > arguments.max_seconds:
            break
    run.evaluate(96)


if __name__ == "__main__":
    main()
