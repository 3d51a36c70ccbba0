"""Scores of single tokens: against the engine's choices and transformers, beside a running engine."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import transformers
from engine_driver import margin_at, run, tiny_config, tiny_model
from test_engine_tokens import GREEDY, prompts

from specbench.engine import scoring
from specbench.engine.build import build_engine
from specbench.engine.config import ModelSpec
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.llama import LlamaForCausalLM
from specbench.engine.models.loading import LoadedModel, load_model
from specbench.engine.scoring import logit_margin, score_next_token, scoring_dtype
from specbench.errors import InputError, NonFiniteLogitsError

CPU = torch.device("cpu")


def load_tiny(dtype: torch.dtype) -> LoadedModel:
    return load_model(ModelSpec("tiny", weights="random", seed=1), dtype, CPU)


def test_the_best_score_is_the_engines_greedy_choice() -> None:
    loaded = tiny_model()
    outcome = run(tiny_config(), prompts(4), GREEDY)
    for request in outcome.requests:
        for position in (0, 7, 31):
            prefix = [*request.prompt_token_ids, *request.output_token_ids[:position]]
            logits = score_next_token(loaded, prefix)
            assert logits.dtype == torch.float32
            assert logits.shape == (loaded.config.vocab_size,)
            assert int(logits.argmax()) == request.output_token_ids[position]
            first, second = logits.topk(2).indices.tolist()
            assert logit_margin(loaded, prefix, first, second) == pytest.approx(margin_at(loaded, prefix), abs=1e-4)
            assert logit_margin(loaded, prefix, second, first) == -logit_margin(loaded, prefix, first, second)


@pytest.mark.parametrize("chunk", [1, 5, 17])
def test_a_long_prefix_is_scored_in_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    prefix = prompts(1)[0]
    whole = score_next_token(tiny_model(), prefix)
    monkeypatch.setattr(scoring, "_CHUNK_TOKENS", chunk)
    assert torch.allclose(score_next_token(tiny_model(), prefix), whole, atol=1e-5)


TINY = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=96, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8, max_position_embeddings=64,
)  # fmt: skip


def reference(tied: bool, biases: bool) -> torch.nn.Module:
    """A random model of transformers, its weights rounded to bfloat16."""
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=tied,
        attention_bias=biases, mlp_bias=biases, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.normal_(0.0, 0.2).bfloat16().float()
    return model


def take_over(model: torch.nn.Module, tied: bool, biases: bool, dtype: torch.dtype) -> LoadedModel:
    config = replace(
        TINY, tie_word_embeddings=tied, attention_bias=biases, attention_output_bias=biases, mlp_bias=biases
    )
    ours, state = LlamaForCausalLM(config, dtype, CPU), model.state_dict()
    for name in ours.expected_tensors():
        ours.load_tensor(name, state[name].clone())
    ours.finish_loading()
    return LoadedModel(ours, config, "tiny", "", config.num_parameters, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_scores_equal_those_of_transformers(tied: bool, biases: bool, dtype: torch.dtype) -> None:
    """In float32 whatever the engine's dtype: the weights are the same, bit for bit."""
    expected = reference(tied, biases)
    loaded = take_over(expected, tied, biases, dtype)
    prefix = [(7 * i + 3) % 96 for i in range(20)]
    with torch.no_grad():
        logits = expected(torch.tensor([prefix])).logits[0, -1]
    assert torch.allclose(score_next_token(loaded, prefix), logits, atol=1e-4)
    assert logit_margin(loaded, prefix, 5, 9) == pytest.approx(float(logits[5] - logits[9]), abs=1e-4)
    assert scoring_dtype(loaded) == torch.float32


def test_a_large_model_is_scored_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, prefix = load_tiny(torch.bfloat16), prompts(1)[0]
    monkeypatch.setattr(scoring, "MAX_FLOAT32_BYTES", 4 * loaded.num_parameters - 1)
    assert scoring_dtype(loaded) == torch.bfloat16
    rounded = score_next_token(loaded, prefix)
    monkeypatch.undo()
    exact = score_next_token(loaded, prefix)
    assert scoring_dtype(loaded) == torch.float32
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded, exact, atol=0.3)
    assert not torch.allclose(rounded, exact, atol=1e-4)


def test_the_copy_is_made_once_and_goes_with_its_model() -> None:
    loaded = load_tiny(torch.bfloat16)
    copies = len(scoring._float32_models)
    for _ in range(2):
        score_next_token(loaded, [1, 2, 3])
        assert len(scoring._float32_models) == copies + 1
    copy = weakref.ref(scoring._float32_models[loaded.model])
    assert copy() is not None
    del loaded
    gc.collect()
    assert copy() is None


def test_a_running_engine_is_left_as_it_was() -> None:
    """Scored between its steps: the same tokens as without, and the calling thread's threads as before."""
    expected = run(tiny_config(), prompts(2), GREEDY).outputs
    engine = build_engine(tiny_config(), loaded=tiny_model())
    try:
        requests = [engine.add_request(prompt, GREEDY) for prompt in prompts(2)]
        while engine.has_work:
            engine.step()
            threads = torch.get_num_threads()
            score_next_token(engine.loaded, requests[0].prompt_token_ids)
            assert torch.get_num_threads() == threads
            assert not torch.is_inference_mode_enabled()
    finally:
        engine.shutdown()
    assert [request.output_token_ids for request in requests] == expected


@pytest.mark.parametrize(
    ("prefix", "ids", "message"),
    [
        ([], (0, 1), "no tokens"),
        ([-1], (0, 1), "outside 0.."),
        ([10**6], (0, 1), "outside 0.."),
        ([1], (0, 10**6), "outside 0.."),
        ([1] * 10**5, (0, 1), "tokens, and the model"),
    ],
)
def test_bad_prefixes_are_refused(prefix: list[int], ids: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        logit_margin(tiny_model(), prefix, *ids)


def test_nan_logits_are_an_error() -> None:
    model = reference(tied=False, biases=False)
    model.state_dict()["lm_head.weight"][5] = torch.nan
    loaded = take_over(model, False, False, torch.float32)
    with pytest.raises(NonFiniteLogitsError, match="logits of 5 and 6"):
        logit_margin(loaded, [1, 2], 5, 6)
