"""Training of draft heads: the unrolled pass against one chain at a time, the loss, resuming, and the files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from heads_case import DRAFTED, HIDDEN, VOCABULARY, heads, tiny_answers, tiny_config, tiny_head, tiny_target
from torch import Tensor

STEPS = 4
KINDS = ("eagle3", "mtp")


def rotate(head: Tensor, position: int, theta: float) -> Tensor:
    """One head of D elements, halves rotated."""
    half = len(head) // 2
    angles = torch.tensor([position * theta ** (-2 * index / len(head)) for index in range(half)])
    left, right = head[:half], head[half:]
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()])


class OneChain:
    """A head run token by token from its published tensors, with a plain list for a cache."""

    def __init__(self, head: Any) -> None:
        self.config, self.kind = head.config, head.config.kind
        prefix = "midlayer." if self.kind == "eagle3" else f"model.layers.{head.config.num_target_layers}."
        self.tensors = {name.removeprefix(prefix): tensor.detach() for name, tensor in head.tensors().items()}
        self.embedding = head.embedding
        self.cache: list[tuple[Tensor, Tensor]] = []

    def norm(self, x: Tensor, name: str | None = None) -> Tensor:
        scaled = x / (x.square().mean() + self.config.rms_norm_eps).sqrt()
        return scaled if name is None else scaled * self.tensors[f"{name}.weight"]

    def start(self, states: Tensor) -> Tensor:
        if self.kind == "mtp":
            return states[3]
        return self.tensors["fc.weight"] @ torch.cat([self.norm(state) for state in states[:3]])

    def feed(self, token_id: int, hidden: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Run one position; return the hidden state and what the output matrix is applied to."""
        t, config, embedded = self.tensors, self.config, self.embedding[token_id]
        if self.kind == "eagle3":
            residual = hidden
            x = torch.cat([self.norm(embedded, "input_layernorm"), self.norm(hidden, "hidden_norm")])
        else:
            both = torch.cat([self.norm(embedded, "enorm"), self.norm(hidden, "hnorm")])
            residual = t["eh_proj.weight"] @ both
            x = self.norm(residual, "input_layernorm")
        q, k, v = (t[f"self_attn.{name}_proj.weight"] @ x for name in "qkv")
        size = config.head_dim
        keys = [rotate(head, position, config.rope_theta) for head in k.split(size)]
        self.cache.append((torch.stack(keys), torch.stack(v.split(size))))
        mixed = []
        for index, query in enumerate(q.split(size)):
            kv_head = index // (config.num_heads // config.num_kv_heads)
            turned = rotate(query, position, config.rope_theta)
            scores = torch.stack([turned @ key[kv_head] / math.sqrt(size) for key, _ in self.cache]).softmax(0)
            mixed.append(sum(share * value[kv_head] for share, (_, value) in zip(scores, self.cache, strict=True)))
        h = residual + t["self_attn.o_proj.weight"] @ torch.cat(mixed)
        x = self.norm(h, "post_attention_layernorm")
        gated = F.silu(t["mlp.gate_proj.weight"] @ x) * (t["mlp.up_proj.weight"] @ x)
        h = h + t["mlp.down_proj.weight"] @ gated
        return h, self.norm(h, "norm" if self.kind == "eagle3" else "shared_head.norm")


@pytest.mark.parametrize("kind", KINDS)
def test_unrolled_chains_are_those_run_token_by_token(kind: str) -> None:
    head, answers = tiny_head(kind), tiny_answers()
    batch = heads.batches.collate(answers)
    with heads.products.computing_in(torch.float32), torch.no_grad():
        outputs = list(head.unroll(batch, STEPS, lambda step, _: batch.tokens_at(batch.bases + step + 1)))
    checked = 0
    for row, answer in enumerate(answers):
        for column in range(answer.answer_len - 1):
            base = answer.prompt_len - 1 + column
            assert batch.bases[row, column] == base
            chain = OneChain(head)
            for position in range(base + 1):
                state = answer.states[position].float()
                hidden, out = chain.feed(answer.token_ids[position + 1], chain.start(state), position)
            for step in range(STEPS):
                if base + step + 2 >= len(answer.token_ids):
                    assert not batch.is_predicted(step)[row, column]
                    break
                torch.testing.assert_close(outputs[step][row, column], out, rtol=2e-4, atol=2e-4)
                checked += 1
                position = base + step + 1
                hidden, out = chain.feed(
                    answer.token_ids[position + 1] if position + 1 < len(answer.token_ids) else 0, hidden, position
                )
    assert checked > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_does_not_see_the_target_beyond_its_base(kind: str) -> None:
    head, answers = tiny_head(kind), tiny_answers(1)
    base = answers[0].prompt_len + 1
    batch = heads.batches.collate(answers)
    states = batch.states.clone()
    states[:, base + 1 :] += 1.0
    changed = heads.batches.Batch(batch.token_ids, states, batch.lengths, batch.bases)
    column = base - answers[0].prompt_len + 1
    with torch.no_grad():
        pairs = [
            list(head.unroll(b, STEPS, lambda step, _: batch.tokens_at(batch.bases + step + 1)))
            for b in (batch, changed)
        ]
    for before, after in zip(*pairs, strict=True):
        assert torch.equal(before[:, : column + 1], after[:, : column + 1])
        assert not torch.equal(before[:, column + 1 :], after[:, column + 1 :])


def test_the_loss_and_its_gradients_are_those_of_cross_entropy() -> None:
    torch.manual_seed(0)
    rows = torch.randn(11, HIDDEN, requires_grad=True)
    weight = torch.randn(DRAFTED, HIDDEN, requires_grad=True)
    states, output = torch.randn(11, HIDDEN), torch.randn(DRAFTED, HIDDEN)
    with heads.products.computing_in(torch.float32):
        targets = heads.products.likeliest_tokens(states, output, DRAFTED)
        ours = heads.products.soft_loss(rows, weight, targets, chunk=4)
        ours.backward()
    found = [ours.detach(), rows.grad, weight.grad]
    rows.grad = weight.grad = None
    reference = F.cross_entropy(rows @ weight.t(), (states @ output.t()).softmax(-1), reduction="sum")
    reference.backward()
    for mine, theirs in zip(found, [reference.detach(), rows.grad, weight.grad], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def make_run(directory: Path, shards: Path, kind: str = "eagle3") -> Any:
    torch.manual_seed(0)
    target = tiny_target()
    head = heads.head_building.build_head(tiny_config(kind), target, torch.arange(DRAFTED))
    # Older releases of PyTorch have no Muon.
    muon_rate = 1e-2 if hasattr(torch.optim, "Muon") else 0.0
    plan = heads.plan.Plan(tokens=2000, unroll=STEPS, rate=1e-2, muon_rate=muon_rate, pool_shards=1, top_k=8)
    trainer = heads.train.Trainer(head, target, plan)
    reader = heads.batches.Reader([shards], num_held_out=1, batch_texts=2, seed=7)
    directory.mkdir(exist_ok=True)
    return heads.train.Run(trainer, reader, directory, torch.device("cpu"))


def write_shards(directory: Path, count: int = 4) -> None:
    directory.mkdir()
    for index in range(count):
        heads.shards.write_shard(heads.shards.tokens_path(directory, index), tiny_answers(6, seed=index), seed=0)


def read_log(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path / "shards")
    whole = make_run(tmp_path / "whole", tmp_path / "shards", kind)
    for _ in range(3):
        whole.train_pool()
    first = make_run(tmp_path / "parts", tmp_path / "shards", kind)
    first.train_pool()
    second = make_run(tmp_path / "parts", tmp_path / "shards", kind)
    assert second.resume()
    for _ in range(2):
        second.train_pool()
    logs = [read_log(tmp_path / name) for name in ("whole", "parts")]
    for entry in (*logs[0], *logs[1]):
        del entry["seconds"]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 3
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_training_lowers_the_loss_and_leaves_the_held_out_shard_alone(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards")
    run = make_run(tmp_path / "run", tmp_path / "shards")
    for _ in range(12):
        run.train_pool()
    losses = [entry["loss"] for entry in read_log(tmp_path / "run")]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    used = run._reader.state()["uses"]
    assert sorted(used.values()) == [4, 4, 4]
    assert not any("00000" in path for path in used)


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_head_is_read_back(tmp_path: Path, kind: str) -> None:
    head = tiny_head(kind)
    heads.head_config.save_head(tmp_path / "head", head.config, head.tensors())
    target = tmp_path / "target"
    target.mkdir()
    config = head.config.to_json() | {"num_hidden_layers": 3}
    (target / "config.json").write_text(json.dumps(config))
    parts = tiny_target()
    heads.head_config.save_file(
        {
            "model.embed_tokens.weight": parts.embedding,
            "lm_head.weight": parts.output,
            "model.norm.weight": parts.final_norm,
        },
        target / "model.safetensors",
    )
    read = heads.head_building.load_head(tmp_path / "head", target)
    assert torch.equal(read.draft_ids, head.draft_ids)
    for name, tensor in head.tensors().items():
        expected = tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.is_floating_point() else tensor
        assert torch.equal(read.tensors()[name], expected), name
    maps = heads.head_modules.vocabulary_maps(head.draft_ids, VOCABULARY)
    assert torch.equal(maps["t2d"].nonzero().squeeze(1), head.draft_ids)
    assert torch.equal(torch.arange(DRAFTED) + maps["d2t"], head.draft_ids)


def test_a_head_begun_from_another_keeps_its_weights_and_the_rows_of_shared_draft_tokens(tmp_path: Path) -> None:
    old, target = tiny_head("eagle3"), tiny_target()
    heads.head_config.save_head(tmp_path, old.config, old.tensors())
    new = heads.head_building.build_head(tiny_config("eagle3"), target, torch.arange(VOCABULARY - DRAFTED, VOCABULARY))
    fresh = new.lm_head.weight.detach().clone()
    heads.head_building.start_from(new, tmp_path)
    assert torch.equal(new.fc.weight, old.fc.weight.to(torch.bfloat16).float())
    old_rows = dict(zip(old.draft_ids.tolist(), old.lm_head.weight.to(torch.bfloat16).float(), strict=True))
    shared = [token_id for token_id in new.draft_ids.tolist() if token_id in old_rows]
    assert 0 < len(shared) < DRAFTED
    for row, token_id in enumerate(new.draft_ids.tolist()):
        assert torch.equal(new.lm_head.weight[row], old_rows.get(token_id, fresh[row]))


def test_the_fitted_fusion_is_the_linear_map_that_is_there() -> None:
    head, target = tiny_head("mtp"), tiny_target()
    true = torch.randn(HIDDEN, 2 * HIDDEN)
    answers = tiny_answers(120)
    batch = heads.batches.collate(answers)
    matrix, x = head.fusion(head.embedding[batch.token_ids[:, 1:]], batch.states)
    states = batch.states.clone()
    for position in range(states.shape[1] - 1):
        # The state at the next position is a linear map of what is read at this one.
        states[:, position + 1, -1] = ((x[:, position] @ true.t()) * target.final_norm).to(torch.bfloat16)
        batch = heads.batches.Batch(batch.token_ids, states, batch.lengths, batch.bases)
        _, x = head.fusion(head.embedding[batch.token_ids[:, 1:]], batch.states)
    heads.head_building.fit_fusion(head, [batch], target.final_norm, offset=1, ridge=1e-6)
    torch.testing.assert_close(matrix.weight, true, rtol=0.05, atol=0.05)


def test_acceptance_is_counted_along_the_answer() -> None:
    walk = heads.evaluate.walk
    # 1 token is the prompt's; steps commit 2 + 1, 0 + 1, 3 of 4 (the answer ends).
    assert walk([2, 9, 9, 0, 4, 9, 9, 9], 8, 4) == (7, 3)
    assert walk([2, 9, 9, 0, 4, 9, 9, 9], 8, 1) == (7, 4)
    assert walk([0, 0, 0], 4, 4) == (3, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_matches_end_at_the_first_wrong_draft_and_at_the_end_of_the_text(kind: str) -> None:
    head, answer = tiny_head(kind), tiny_answers(1, seed=4)[0]
    length = answer.answer_len - 1
    drafted: list[int] = []

    def choose(_: int, out: Tensor) -> Tensor:
        ids = head.draft_ids[heads.products.product(out, head.output_weight()).argmax(-1)]
        drafted.append(int(ids[0, 0]))
        return ids

    with torch.no_grad():
        *_, last = head.unroll(heads.batches.collate([answer]), length, choose)
        choose(length, last)
    token_ids = [*answer.token_ids[: answer.prompt_len + 1], *drafted]
    own = heads.shards.Answered(tuple(token_ids), answer.prompt_len, False, answer.states)
    matches = heads.evaluate.draft_matches(head, heads.batches.collate([own]), length + 3)
    assert matches[0, 0] == length
    token_ids[answer.prompt_len + 2] = (token_ids[answer.prompt_len + 2] + 1) % VOCABULARY
    wrong = heads.shards.Answered(tuple(token_ids), answer.prompt_len, False, answer.states)
    assert heads.evaluate.draft_matches(head, heads.batches.collate([wrong]), length)[0, 0] == 1


def test_too_few_shards_are_named_with_what_is_held_out(tmp_path: Path) -> None:
    heads.shards.write_shard(heads.shards.tokens_path(tmp_path, 0), tiny_answers(), seed=0)
    reader = heads.batches.Reader([tmp_path], num_held_out=1, batch_texts=2, seed=0)
    with pytest.raises(SystemExit, match=rf"1 found in {tmp_path}, of which --held-out keeps 1"):
        next(reader.pool(1))
    assert len(reader.held_out()) == len(tiny_answers())
    all_of_them = heads.batches.Reader([tmp_path], num_held_out=0, batch_texts=2, seed=0)
    assert len(list(all_of_them.pool(1))) == 3


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("answers", ["nowhere.jsonl", "out"], "there is no nowhere.jsonl"),
        ("answers", ["out"], "give a file of prompts, or --mt-bench"),
        ("evaluate", ["nowhere", "."], "nowhere is no head: it has no config.json"),
        ("train", ["eagle3", "out", "nowhere"], "there is no nowhere"),
        ("train", ["eagle3", "out", ".", "--init", "."], ". is no head: it has no config.json"),
        ("prompts", ["out.jsonl", "--sources", "nowhere"], "there is no nowhere"),
    ],
)
def test_what_is_not_there_is_named(
    script: str,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, *arguments])
    with pytest.raises(SystemExit) as caught:
        getattr(heads, script).main()
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", ["answers", "evaluate", "train", "prompts"])
def test_every_option_says_what_it_is(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [script, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        getattr(heads, script).main()
    options = re.split(r"^  (?=-)", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    assert len(options) > 5
    # An option, and behind it or on a line of its own what it is.
    assert [option for option in options if not re.search(r"\S\s{2,}\S", option)] == []
