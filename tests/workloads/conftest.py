"""A small checkpoint directory with a real byte-level BPE tokenizer, and the pulled default model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.downloads import cache_directory
from specbench.workloads.tokenizer import Tokenizer

TRAINING_TEXT = [
    "the quick brown fox jumps over the lazy dog, and then the dog jumps over the fox",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 22))  # 1 + 22 = 23",
    "user assistant system tools date today is not there yet, naïve café, 東京, 🙂🙂",
]
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]

# Uses what real templates use: trimmed blocks, loop controls, namespaces, special tokens, tojson, the date,
# generation blocks, and an exception of its own.
CHAT_TEMPLATE = """{{- bos_token }}
{%- set state = namespace(count=0) %}
{% for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('system must come first') }}
    {%- endif %}
    {%- if message.content == 'skip me' %}
        {%- continue %}
    {%- endif %}
    {%- set state.count = state.count + 1 %}
{{ '<|im_start|>' + message.role + ' ' + state.count|string + '\\n' }}
    {% if message.role == 'assistant' %}
        {%- generation %}{{ message.content | trim }}{% endgeneration %}
    {%- else %}
{{ message.content }} {{ message | tojson }}
    {%- endif %}
{{ '<|im_end|>\\n' }}
{% endfor %}
{{ strftime_now('%Y') }}
{% if tools is none and add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def _write_checkpoint(directory: Path, **config: Any) -> Path:
    """Train a tokenizer of a few hundred tokens and write its files as a checkpoint has them."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(TRAINING_TEXT, trainer)
    # What files may carry and prompts must not get: a template spells its own first token, and padding and
    # truncation are left over from a training run.
    fast.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    fast.enable_truncation(max_length=8)
    fast.enable_padding(pad_id=3, pad_token="<pad>", length=8)
    directory.mkdir(parents=True, exist_ok=True)
    fast.save(str(directory / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
        **config,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., Path]:
    """Writes the small checkpoint to a directory; keywords go into tokenizer_config.json."""
    return _write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tokenizer.json and tokenizer_config.json; do not write to it."""
    return _write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tiny_tokenizer(checkpoint: Path) -> Tokenizer:
    """The tokenizer of ``checkpoint``."""
    return Tokenizer.load(checkpoint)


@pytest.fixture
def byte_tokenizer() -> Tokenizer:
    """The stand-in of models without a tokenizer."""
    return Tokenizer.byte_level(512)


@pytest.fixture(scope="session")
def smollm2_directory() -> Path:
    """The default model's directory in the cache."""
    directory = cache_directory() / "models" / "smollm2-135m"
    if not (directory / "tokenizer.json").is_file():
        pytest.skip("smollm2-135m is not in the cache; run: specbench pull smollm2-135m")
    return directory
