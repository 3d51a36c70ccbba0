"""Acceptance length of a head, without an engine: which greedy drafts would be accepted along given greedy answers.

    python benchmarks/heads/evaluate.py HEAD_DIRECTORY SHARDS_DIRECTORY [--lengths 3,4,5] [--model smollm2-135m]

At each step of an answer the head, given the target's states so far, drafts K tokens on its own; they count up to the
first that is not the answer's, one more comes from the target, and the next step begins behind it. An answer's first
token is the prompt's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch
from arguments import Formatter, existing, head_directory
from batches import Batch, collate, usable
from head_building import load_head
from head_modules import DraftHead
from products import product
from shards import Answered, list_shards, read_shard
from torch import Tensor

from specbench.engine.config import ModelSpec
from specbench.engine.models.checkpoint import find_model

_BATCH_TEXTS = 16


@torch.no_grad()
def draft_matches(head: DraftHead, batch: Batch, draft_len: int) -> Tensor:
    """[B, A]: how many of ``draft_len`` tokens drafted from each base are the text's, up to the first that is not."""
    drafted: list[Tensor] = []

    def choose(step: int, out: Tensor) -> Tensor:  # noqa: ARG001 - the head's own choice is the same at any step
        drafted.append(head.draft_ids[product(out, head.output_weight()).argmax(-1)])
        return drafted[-1]

    for out in head.unroll(batch, draft_len, choose):
        last = out
    choose(draft_len, last)
    matches = [
        (tokens == batch.tokens_at(batch.bases + step + 2)) & batch.is_predicted(step)
        for step, tokens in enumerate(drafted)
    ]
    return torch.stack(matches).cumprod(0).sum(0)


def walk(matches: Sequence[int], answer_len: int, draft_len: int) -> tuple[int, int]:
    """Return tokens committed and steps taken along an answer.

    :param matches: by base, as :func:`draft_matches`; the first base follows the answer's first token.
    """
    committed, steps = 1, 0
    while committed < answer_len:
        accepted = min(matches[committed - 1], draft_len)
        committed += min(accepted + 1, answer_len - committed)
        steps += 1
    return committed - 1, steps


def acceptance_lengths(head: DraftHead, answers: Sequence[Answered], draft_lens: Sequence[int]) -> dict[int, float]:
    """Mean tokens a target step, bonus included, by K."""
    totals = {draft_len: [0, 0] for draft_len in draft_lens}
    ordered = sorted(answers, key=lambda answer: answer.answer_len)
    for start in range(0, len(ordered), _BATCH_TEXTS):
        part = ordered[start : start + _BATCH_TEXTS]
        matches = draft_matches(head, collate(part).to(head.draft_ids.device), max(draft_lens)).tolist()
        for draft_len, total in totals.items():
            for answer, row in zip(part, matches, strict=True):
                committed, steps = walk(row, answer.answer_len, draft_len)
                total[0] += committed
                total[1] += steps
    return {draft_len: committed / steps for draft_len, (committed, steps) in totals.items()}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("head", type=head_directory, help="of train.py")
    parser.add_argument("shards", type=existing, help="directory that answers.py wrote")
    parser.add_argument("--lengths", default="3,4,5", help="values of K")
    parser.add_argument("--model", default="smollm2-135m", help="the target: preset or checkpoint directory")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU")
    parser.add_argument("--max-shards", type=int, help="all if not given")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    directory = find_model(ModelSpec(arguments.model)).path
    head = load_head(arguments.head, directory).to(arguments.device)
    shards = list_shards(arguments.shards)[: arguments.max_shards]
    answers = [answer for shard in shards for answer in usable(read_shard(shard)) if not answer.is_sampled]
    if not answers:
        parser.error(f"{arguments.shards} holds no greedy answers of two tokens or more")
    found = acceptance_lengths(head, answers, [int(length) for length in arguments.lengths.split(",")])
    print(json.dumps({"answers": len(answers), "acceptance_length": {str(k): round(v, 4) for k, v in found.items()}}))


if __name__ == "__main__":
    main()
