"""Every family of the Llama model against transformers, on tiny random checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import transformers

from specbench.engine.attention.cpu_paged import CpuPagedAttention
from specbench.engine.attention.metadata import AttentionMetadata
from specbench.engine.attention.torch_gather import GatherAttention
from specbench.engine.kv_cache import KVCache
from specbench.engine.models.config import ModelConfig, RopeScaling
from specbench.engine.models.llama import LlamaForCausalLM
from specbench.errors import CheckpointError

CPU = torch.device("cpu")
TOKENS_PER_BLOCK = 4
BLOCKS_PER_REQUEST = 16
TOLERANCE = 1e-4

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Family:
    """One architecture: the reference's configuration class, its keys, and ours that differ from the default."""

    reference: str
    keys: dict[str, object]
    ours: dict[str, object]

    def build_reference(self) -> torch.nn.Module:
        """A randomly initialised model of transformers; biases and norms random too."""
        config = getattr(transformers, f"{self.reference}Config")(**SIZES | self.keys, attn_implementation="eager")
        torch.manual_seed(5)
        model = getattr(transformers, f"{self.reference}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            parameter.data.normal_(mean, 0.2)
        return model

    def config(self) -> ModelConfig:
        """The same in our words."""
        sizes: dict[str, object] = {
            "architecture": f"{self.reference}ForCausalLM",
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 3,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
        }
        return ModelConfig(**sizes | self.ours)


FAMILIES = {
    "smollm2": Family(
        "Llama",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
        {"tie_word_embeddings": True, "rope_theta": 1e5},
    ),
    "llama-3": Family(
        "Llama",
        {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE},
        {"rope_theta": 500.0, "rope_scaling": RopeScaling(8.0, 1.0, 4.0, 32)},
    ),
    "llama-biases": Family(
        "Llama",
        {"attention_bias": True, "mlp_bias": True},
        {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    ),
    "llama-one-kv-head": Family("Llama", {"num_key_value_heads": 1}, {"num_kv_heads": 1}),
    "llama-all-kv-heads": Family("Llama", {"num_key_value_heads": 4}, {"num_kv_heads": 4}),
    "mistral": Family("Mistral", {"head_dim": 16, "sliding_window": None}, {"head_dim": 16}),
    "qwen2": Family(
        "Qwen2",
        {"tie_word_embeddings": True},
        {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3": Family("Qwen3", {"head_dim": 16}, {"head_dim": 16, "qk_norm": True}),
}


def load(config, state, dtype=torch.float32):
    """Our model with the reference's weights, in the reference's order reversed: order must not matter."""
    model = LlamaForCausalLM(config, dtype, CPU)
    for name in reversed(list(model.expected_tensors())):
        model.load_tensor(name, state[name].clone())
    model.finish_loading()
    return model


class Sequences:
    """Several sequences in one paged cache, advanced a step at a time."""

    def __init__(self, model, attention_class, num_requests):
        config = model.config
        cache = KVCache(
            config.num_layers,
            num_requests * BLOCKS_PER_REQUEST,
            TOKENS_PER_BLOCK,
            config.num_kv_heads,
            config.head_dim,
            model.dtype,
            CPU,
        )
        self.model = model
        self.attention = attention_class(cache, num_heads=config.num_heads)
        blocks = torch.arange(num_requests * BLOCKS_PER_REQUEST, dtype=torch.int32)
        self.table = blocks.view(num_requests, BLOCKS_PER_REQUEST)

    def step(self, chunks, generation, token_ids):
        """Logits of a step's rows: ``chunks`` and ``generation`` are (request, start, end), equally long the latter."""
        parts = [*chunks, *generation]
        positions = torch.cat([torch.arange(start, end) for _, start, end in parts])
        rows = torch.cat([token_ids[request, start:end] for request, start, end in parts])
        metadata = AttentionMetadata(
            num_context=len(chunks),
            context_query_lens=[end - start for _, start, end in chunks],
            context_kv_lens=[end for _, _, end in chunks],
            num_generation=len(generation),
            rows_per_generation=generation[0][2] - generation[0][1] if generation else 1,
            generation_kv_lens=torch.tensor([end for _, _, end in generation], dtype=torch.int64),
            block_table=self.table[[request for request, _, _ in parts]],
            positions=positions,
        )
        with torch.inference_mode():
            self.attention.prepare(metadata)
            logits = self.model.compute_logits(self.model.forward(rows, positions, self.attention))
        return logits.split([end - start for _, start, end in parts])


def compare(got, expected, parts):
    for logits, (request, start, end) in zip(got, parts, strict=True):
        torch.testing.assert_close(logits, expected[request, start:end], rtol=0, atol=TOLERANCE)


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture
def token_ids():
    return torch.randint(0, 96, (3, 40), generator=torch.Generator().manual_seed(3))


def reference_logits(model, token_ids):
    with torch.no_grad():
        return model(token_ids).logits.float()


def test_the_expected_tensors_are_those_of_the_reference(family):
    state = family.build_reference().state_dict()
    if family.config().tie_word_embeddings:
        del state["lm_head.weight"]
    model = LlamaForCausalLM(family.config(), torch.float32, CPU)
    assert model.expected_tensors() == {name: tuple(tensor.shape) for name, tensor in state.items()}


@pytest.mark.parametrize("attention_class", [CpuPagedAttention, GatherAttention])
def test_prefill_chunks_and_decoding_match_the_reference(family, token_ids, attention_class):
    reference = family.build_reference()
    expected = reference_logits(reference, token_ids)
    sequences = Sequences(load(family.config(), reference.state_dict()), attention_class, 3)

    # Prompts of unlike lengths at once; one goes on in a second chunk while two decode; then all decode, K = 0 and 3.
    first = [(0, 0, 17), (1, 0, 5), (2, 0, 9)]
    compare(sequences.step(first, [], token_ids), expected, first)
    chunk, rows = [(2, 9, 22)], [(0, 17, 18), (1, 5, 6)]
    compare(sequences.step(chunk, rows, token_ids), expected, [*chunk, *rows])
    rows = [(0, 18, 19), (1, 6, 7), (2, 22, 23)]
    compare(sequences.step([], rows, token_ids), expected, rows)
    rows = [(2, 23, 27), (0, 19, 23), (1, 7, 11)]
    compare(sequences.step([], rows, token_ids), expected, rows)


def test_rejected_rows_are_overwritten(token_ids):
    family = FAMILIES["smollm2"]
    reference = family.build_reference()
    sequences = Sequences(load(family.config(), reference.state_dict()), CpuPagedAttention, 3)
    expected = reference_logits(reference, token_ids)
    sequences.step([(0, 0, 10)], [], token_ids)
    wrong = token_ids.clone()
    wrong[0, 11:15] += 1
    sequences.step([], [(0, 10, 15)], wrong.remainder(96))
    rows = [(0, 11, 13)]
    compare(sequences.step([], rows, token_ids), expected, rows)


@pytest.mark.parametrize("name", ["smollm2", "llama-biases", "qwen3"])
def test_bfloat16_stays_near_float32(name, token_ids):
    family = FAMILIES[name]
    reference = family.build_reference().to(torch.bfloat16)
    expected = reference_logits(reference.float(), token_ids)
    model = load(family.config(), reference.state_dict(), torch.bfloat16)
    sequences = Sequences(model, CpuPagedAttention, 3)
    parts = [(0, 0, 30), (1, 0, 7)]
    logits = torch.cat(sequences.step(parts, [], token_ids))
    wanted = torch.cat([expected[request, start:end] for request, start, end in parts])
    assert logits.dtype == torch.float32
    assert (logits - wanted).pow(2).mean() < 3e-4 * wanted.pow(2).mean()


def test_a_tensor_of_another_shape_is_named():
    model = LlamaForCausalLM(FAMILIES["smollm2"].config(), torch.float32, CPU)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight.*\[48, 31\], expected \[48, 32\]"):
        model.load_tensor("model.layers.1.mlp.up_proj.weight", torch.zeros(48, 31))


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.3.mlp.up_proj.weight"])
def test_an_unknown_tensor_is_refused(name):
    model = LlamaForCausalLM(FAMILIES["smollm2"].config(), torch.float32, CPU)
    with pytest.raises(CheckpointError, match="not a tensor of this model"):
        model.load_tensor(name, torch.zeros(48, 32))


def test_a_tensor_that_comes_twice_is_refused():
    model = LlamaForCausalLM(FAMILIES["smollm2"].config(), torch.float32, CPU)
    model.load_tensor("model.norm.weight", torch.zeros(32))
    with pytest.raises(CheckpointError, match="came twice"):
        model.load_tensor("model.norm.weight", torch.zeros(32))


def test_missing_tensors_are_named():
    model = LlamaForCausalLM(FAMILIES["smollm2"].config(), torch.float32, CPU)
    names = list(model.expected_tensors())
    for name in names[1:]:
        model.load_tensor(name, torch.zeros(model.expected_tensors()[name]))
    with pytest.raises(CheckpointError, match=r"missing: model\.embed_tokens\.weight$"):
        model.finish_loading()
