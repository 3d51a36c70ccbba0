"""The hybrid family against transformers, layer by layer and whole, on tiny random checkpoints.

Tolerances are absolute, in float32. Logits here are as large as 6, and either implementation is up to 5e-5 off from the
reference computed in float64, since their sums run in different orders.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from specbench.engine.attention.cpu_paged import CpuPagedAttention
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.models.config import FULL_ATTENTION, LINEAR_ATTENTION, LinearAttention, ModelConfig
from specbench.engine.models.hybrid import GatedDeltaLayer, HybridForCausalLM
from specbench.engine.recurrence import with_recurrence
from specbench.engine.state_cache import StateCache
from specbench.engine.state_indices import StateIndices

pytest.importorskip("transformers.models.qwen3_next")

CPU = torch.device("cpu")
TOKENS_PER_BLOCK = 4
BLOCKS_PER_REQUEST = 48
TOLERANCE = 1e-4
HYBRID = (LINEAR_ATTENTION, FULL_ATTENTION, LINEAR_ATTENTION, LINEAR_ATTENTION, FULL_ATTENTION)
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": len(HYBRID),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "layer_types": list(HYBRID),
    "num_experts": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
SHAPES = {
    "grouped": LinearAttention(HYBRID, num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=6),
    "plain": LinearAttention(HYBRID, 3, 3, key_head_dim=4, value_head_dim=8, conv_kernel=2),
}


def build_reference(shape: LinearAttention, **keys: object):
    """A randomly initialised model of transformers; norms and decays random too."""
    config = transformers.Qwen3NextConfig(
        **SIZES | keys,
        linear_conv_kernel_dim=shape.conv_kernel,
        linear_key_head_dim=shape.key_head_dim,
        linear_value_head_dim=shape.value_head_dim,
        linear_num_key_heads=shape.num_key_heads,
        linear_num_value_heads=shape.num_value_heads,
        attn_implementation="eager",
    )
    torch.manual_seed(5)
    model = transformers.Qwen3NextForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.uniform_(-4.0, 0.5)
        else:
            parameter.data.normal_(1.0 if name.endswith("linear_attn.norm.weight") else 0.0, 0.2)
    return model


def our_config(shape: LinearAttention | None, **changes: object) -> ModelConfig:
    """The same in our words."""
    config = ModelConfig(
        architecture="Qwen3NextForCausalLM",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_layers=len(HYBRID),
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        qk_norm=True,
        partial_rotary_factor=0.5,
        attention_output_gate=True,
        zero_centered_norms=True,
        linear_attention=shape,
    )
    return replace(config, **changes)


def load(config: ModelConfig, state: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> HybridForCausalLM:
    model = HybridForCausalLM(config, dtype, CPU)
    for name in reversed(list(model.expected_tensors())):
        model.load_tensor(name, state[name].clone())
    model.finish_loading()
    return model


class Sequences:
    """Several sequences in one paged cache and one state cache, advanced a step at a time. A request is its slot."""

    def __init__(self, model, attention_class=CpuPagedAttention, num_requests: int = 3, num_states: int = 4) -> None:
        config = model.config
        num_blocks = num_requests * BLOCKS_PER_REQUEST
        cache = KVCache(
            config.num_kv_layers, num_blocks, TOKENS_PER_BLOCK, config.num_kv_heads, config.head_dim, model.dtype, CPU
        )
        self.model = model
        attention = attention_class(cache, num_heads=config.num_heads)
        self.operator = with_recurrence(attention, config, num_requests, num_states)
        self.table = torch.arange(num_blocks, dtype=torch.int32).view(num_requests, BLOCKS_PER_REQUEST)

    def prepare(self, chunks, generation, is_padding=None):
        """Prepare a step; ``chunks`` and ``generation`` are (request, start, end), equally long the latter."""
        parts = [*chunks, *generation]
        positions = torch.cat([torch.arange(start, end) for _, start, end in parts])
        state = StateIndices.of([request for request, _, _ in parts], CPU)
        if is_padding is not None:
            state = StateIndices(state.slots, torch.tensor(is_padding))
        metadata = AttentionMetadata(
            num_context=len(chunks),
            context_query_lens=[end - start for _, start, end in chunks],
            context_kv_lens=[end for _, _, end in chunks],
            num_generation=len(generation),
            rows_per_generation=generation[0][2] - generation[0][1] if generation else 1,
            generation_kv_lens=torch.tensor([end for _, _, end in generation], dtype=torch.int64),
            block_table=self.table[[request for request, _, _ in parts]],
            positions=positions,
            state=state,
        )
        self.operator.prepare(metadata)
        return positions

    def step(self, chunks, generation, token_ids, is_padding=None):
        """Logits of a step's rows."""
        parts = [*chunks, *generation]
        rows = torch.cat([token_ids[request, start:end] for request, start, end in parts])
        with torch.inference_mode():
            positions = self.prepare(chunks, generation, is_padding)
            logits = self.model.compute_logits(self.model.forward(rows, positions, self.operator))
        return logits.split([end - start for _, start, end in parts])


def compare(got, expected, parts, tolerance=TOLERANCE):
    for logits, (request, start, end) in zip(got, parts, strict=True):
        torch.testing.assert_close(logits, expected[request, start:end], rtol=0, atol=tolerance)


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture
def token_ids():
    return torch.randint(0, 96, (3, 150), generator=torch.Generator().manual_seed(3))


def reference_logits(model, token_ids):
    with torch.no_grad():
        return model(token_ids).logits.float()


def test_the_expected_tensors_are_those_of_the_reference(shape):
    state = build_reference(shape).state_dict()
    model = HybridForCausalLM(our_config(shape), torch.float32, CPU)
    assert model.expected_tensors() == {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert sum(tensor.numel() for tensor in state.values()) == model.config.num_parameters


@pytest.mark.parametrize("index", [0, 1])
def test_each_kind_of_layer_matches_the_reference(shape, index):
    """One layer of each kind, 130 tokens at once: more than two products of the chunked recurrence."""
    reference = build_reference(shape)
    ours = load(our_config(shape), reference.state_dict())
    assert isinstance(ours.layers[index], GatedDeltaLayer) is (HYBRID[index] == LINEAR_ATTENTION)
    hidden = torch.randn(130, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(130)
    with torch.no_grad():
        embeddings = reference.model.rotary_emb(hidden[None], positions[None])
        mask = None
        if HYBRID[index] == FULL_ATTENTION:
            mask = torch.full((1, 1, 130, 130), -torch.inf).triu(1)
        expected = reference.model.layers[index](hidden[None], position_embeddings=embeddings, attention_mask=mask)
        expected = expected[0] if isinstance(expected, tuple) else expected
        sequences = Sequences(ours)
        sequences.prepare([(0, 0, 130)], [])
        found = ours.layers[index].forward(hidden, ours._rotary.rotations(positions), sequences.operator)
    torch.testing.assert_close(found, expected.view(130, 32), rtol=0, atol=2e-5)


@pytest.mark.parametrize("attention_class", [CpuPagedAttention, GatherAttention])
def test_prefill_chunks_and_decoding_match_the_reference(shape, token_ids, attention_class):
    reference = build_reference(shape)
    expected = reference_logits(reference, token_ids)
    sequences = Sequences(load(our_config(shape), reference.state_dict()), attention_class)

    # Prompts of unlike lengths at once; one goes on in a second chunk while two decode; then all decode, K = 0 and 3.
    first = [(0, 0, 70), (1, 0, 1), (2, 0, 9)]
    compare(sequences.step(first, [], token_ids), expected, first)
    chunk, rows = [(2, 9, 140)], [(0, 70, 71), (1, 1, 2)]
    compare(sequences.step(chunk, rows, token_ids), expected, [*chunk, *rows])
    rows = [(0, 71, 72), (1, 2, 3), (2, 140, 141)]
    compare(sequences.step([], rows, token_ids), expected, rows)
    rows = [(2, 141, 145), (0, 72, 76), (1, 3, 7)]
    compare(sequences.step([], rows, token_ids), expected, rows)
    # Three of those rows were accepted by one request, one by another, all four by the third.
    rows = [(1, 4, 8), (0, 75, 79), (2, 145, 149)]
    compare(sequences.step([], rows, token_ids), expected, rows)


@pytest.mark.parametrize("num_accepted", [1, 2, 3, 4])
def test_rejected_rows_leave_no_trace(shape, token_ids, num_accepted):
    check_rejected_rows(shape, token_ids, num_accepted)


def check_rejected_rows(shape, token_ids, num_accepted):
    reference = build_reference(shape)
    sequences = Sequences(load(our_config(shape), reference.state_dict()))
    expected = reference_logits(reference, token_ids)
    sequences.step([(0, 0, 10)], [], token_ids)
    wrong = token_ids.clone()
    wrong[0, 10 + num_accepted : 14] += 1
    sequences.step([], [(0, 10, 14)], wrong.remainder(96))
    rows = [(0, 10 + num_accepted, 12 + num_accepted)]
    compare(sequences.step([], rows, token_ids), expected, rows)
    # A step of two rows keeps two states.
    rows = [(0, 11 + num_accepted, 15 + num_accepted)]
    compare(sequences.step([], rows, token_ids), expected, rows)


def test_a_state_that_ignores_what_was_accepted_is_seen(monkeypatch, token_ids):
    """The mechanism broken: the state after the first row of the last step, whatever was accepted."""
    choose = StateCache.choose
    monkeypatch.setattr(StateCache, "choose", lambda self, slots, _: choose(self, slots, self.num_read[slots]))
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        check_rejected_rows(SHAPES["grouped"], token_ids, 3)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (4, 5), (63, 64, 65), (17, 81), (64, 128)])
def test_prefill_in_one_chunk_equals_prefill_in_several(shape, token_ids, cuts):
    """To 1e-4: products are divided elsewhere, and so sums are rounded in another order."""
    model = load(our_config(shape), build_reference(shape).state_dict())
    whole = Sequences(model).step([(0, 0, 140)], [], token_ids)[0]
    sequences, pieces = Sequences(model), []
    for start, end in zip((0, *cuts), (*cuts, 140), strict=True):
        pieces += sequences.step([(0, start, end)], [], token_ids)
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=TOLERANCE)


def test_a_reused_slot_starts_from_nothing(shape, token_ids, monkeypatch):
    model = load(our_config(shape), build_reference(shape).state_dict())
    fresh = Sequences(model).step([(1, 0, 20)], [], token_ids)[0]

    def reuse():
        sequences = Sequences(model)
        poisoned = token_ids.clone()
        poisoned[1] = token_ids[0]
        sequences.step([(1, 0, 50)], [], poisoned)
        for part in (sequences.operator.recurrence.cache._recurrent, sequences.operator.recurrence.cache._conv):
            part[:, 1].fill_(torch.nan)
        return sequences.step([(1, 0, 20)], [], token_ids)[0]

    assert torch.equal(reuse(), fresh)
    # The mechanism broken: the first chunk goes on from what the slot holds.
    kept = lambda self, _: (self._recurrent[0, 1:2, 0], self._conv[0, 1:2, : self.history])  # noqa: E731
    monkeypatch.setattr(StateCache, "empty", kept)
    assert not torch.allclose(reuse(), fresh, atol=TOLERANCE)


def test_a_padding_request_writes_to_no_slot(shape, token_ids):
    model = load(our_config(shape), build_reference(shape).state_dict())

    def decode(is_padding):
        sequences = Sequences(model)
        sequences.step([(0, 0, 10), (1, 0, 10)], [], token_ids)
        if is_padding is not None:
            # The second request of the batch fills it up, and names a slot that is somebody's.
            sequences.step([], [(1, 10, 11), (0, 10, 11)], token_ids, is_padding)
        else:
            sequences.step([], [(1, 10, 11)], token_ids)
        wanted = sequences.step([], [(0, 10, 11), (1, 11, 12)], token_ids)
        return torch.cat(wanted)

    alone = decode(None)
    assert torch.allclose(decode([0, 1]), alone, atol=TOLERANCE)
    # Unmarked it advances the state of the slot it names.
    assert not torch.allclose(decode([0, 0]), alone, atol=TOLERANCE)


def test_greedy_text_is_that_of_the_reference(shape):
    """Token by token, from prompts of several lengths, each in a batch with the others."""
    reference = build_reference(shape)
    sequences = Sequences(load(our_config(shape), reference.state_dict()))
    lengths = [3, 30, 66]
    token_ids = torch.randint(0, 96, (3, 100), generator=torch.Generator().manual_seed(8))
    expected = [generate(reference, token_ids[request, :length], 24) for request, length in enumerate(lengths)]
    logits = sequences.step([(request, 0, length) for request, length in enumerate(lengths)], [], token_ids)
    found: list[list[int]] = [[], [], []]
    for step in range(24):
        rows = []
        for request, length in enumerate(lengths):
            chosen = int(logits[request][-1].argmax())
            found[request].append(chosen)
            token_ids[request, length + step] = chosen
            rows.append((request, length + step, length + step + 1))
        logits = sequences.step([], rows, token_ids)
    assert found == expected
    assert all(len(set(text)) > 3 for text in found), "text of a few tokens would show little"


def generate(reference, prompt, num_tokens):
    """Greedy text by forwards of the whole sequence: no cache, and so nothing to go wrong in it."""
    token_ids = prompt.clone()
    for _ in range(num_tokens):
        best = reference_logits(reference, token_ids[None])[0, -1].argmax()
        token_ids = torch.cat([token_ids, best[None]])
    return token_ids[len(prompt) :].tolist()


def test_attention_biases_and_a_tied_head(token_ids):
    shape = SHAPES["grouped"]
    reference = build_reference(shape, attention_bias=True, tie_word_embeddings=True)
    config = our_config(shape, attention_bias=True, attention_output_bias=True, tie_word_embeddings=True)
    parts = [(0, 0, 20), (2, 0, 3)]
    found = Sequences(load(config, reference.state_dict())).step(parts, [], token_ids)
    compare(found, reference_logits(reference, token_ids), parts)


def test_bfloat16_stays_as_near_to_float32_as_the_reference_does(shape, token_ids):
    reference = build_reference(shape).to(torch.bfloat16)
    rounded = reference_logits(reference, token_ids)
    sequences = Sequences(load(our_config(shape), reference.state_dict(), torch.bfloat16))
    expected = reference_logits(reference.float(), token_ids)
    parts = [(0, 0, 30), (1, 0, 7), (2, 0, 80)]
    logits = torch.cat(sequences.step(parts, [], token_ids))
    wanted, theirs = (torch.cat([each[r, start:end] for r, start, end in parts]) for each in (expected, rounded))
    assert logits.dtype == torch.float32
    assert (logits - wanted).pow(2).mean() < 1.5 * (theirs - wanted).pow(2).mean()


def test_a_float32_copy_has_the_same_weights(shape, token_ids):
    state = build_reference(shape).to(torch.bfloat16).state_dict()
    copied = load(our_config(shape), state, torch.bfloat16).in_float32()
    loaded = load(our_config(shape), {name: tensor.float() for name, tensor in state.items()})
    parts = [(0, 0, 30)]
    assert torch.equal(Sequences(copied).step(parts, [], token_ids)[0], Sequences(loaded).step(parts, [], token_ids)[0])


def test_an_operator_without_state_is_refused(token_ids):
    model = load(our_config(SHAPES["plain"]), build_reference(SHAPES["plain"]).state_dict())
    cache = KVCache(2, 4, 4, 2, 16, torch.float32, CPU)
    with pytest.raises(TypeError, match="CpuPagedAttention holds no recurrent state"):
        model.forward(token_ids[0, :3], torch.arange(3), CpuPagedAttention(cache, num_heads=4))


def test_a_step_without_indices_is_refused():
    sequences = Sequences(load(our_config(SHAPES["plain"]), build_reference(SHAPES["plain"]).state_dict()))
    metadata = AttentionMetadata(
        num_context=1,
        context_query_lens=[3],
        context_kv_lens=[3],
        num_generation=0,
        rows_per_generation=1,
        generation_kv_lens=torch.zeros(0, dtype=torch.int64),
        block_table=sequences.table[:1],
        positions=torch.arange(3),
    )
    with pytest.raises(ValueError, match="state indices"):
        sequences.operator.prepare(metadata)
