"""The tokenizer and chat template inside a GGUF file, written as the files that transformers and tokenizers read.

Byte-level BPE (SmolLM2, Llama 3, Qwen) is converted here, with the splitting rules that the file names; transformers'
own conversion takes them all for GPT-2's and needs tens of seconds. SentencePiece vocabularies are left to it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.downloads import cache_directory, open_staging
from specbench.engine.models.gguf_header import GgufHeader, read_header
from specbench.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# How text is cut before merging, by the file's tokenizer.ggml.pre. None: GPT-2's rule.
_SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "default": None,
    "smollm": None,
    "llama-bpe": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}",
}
_ONE_DIGIT_A_TIME = ("smollm",)
_WHOLE_WORDS_FIRST = ("llama-bpe",)
_COMPOSED = ("qwen2",)

_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_directory(gguf_path: Path) -> Path:
    """Return a cache directory with the tokenizer of a GGUF file, converting it the first time.

    :raises CheckpointError: the file has no tokenizer, or of a kind that cannot be converted.
    """
    stat = gguf_path.stat()
    key = hashlib.sha256(f"{gguf_path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    directory = cache_directory() / "tokenizers" / key
    if not (directory / "tokenizer_config.json").is_file():
        with open_staging(directory) as staging:
            write_tokenizer(read_header(gguf_path), staging.output)
            staging.publish()
    return directory


def write_tokenizer(header: GgufHeader, directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (chat template included) to ``directory``.

    :raises CheckpointError: the file has no tokenizer, or of a kind that cannot be converted.
    """
    model = header.metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError("has no tokenizer", where=str(header.path))
    if model == "gpt2" and header.metadata.get("tokenizer.ggml.pre", "default") in _SPLITS:
        _build_byte_level(header).save(str(directory / "tokenizer.json"))
        text = json.dumps(_tokenizer_config(header), indent=2, ensure_ascii=False)
        (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    else:
        _convert_with_transformers(header, directory)


def _build_byte_level(header: GgufHeader) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = header.metadata.get("tokenizer.ggml.pre", "default")
    tokens = header.array("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in header.array("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in _ONE_DIGIT_A_TIME else []
    if (split := _SPLITS[pre]) is not None:
        from tokenizers import Regex

        steps.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = header.array("tokenizer.ggml.token_type")
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    _add_bos(tokenizer, header, tokens)
    return tokenizer


def _add_bos(tokenizer: Tokenizer, header: GgufHeader, tokens: list[str]) -> None:
    from tokenizers import processors

    bos_id = header.metadata.get("tokenizer.ggml.bos_token_id")
    # Llama 3 files leave the flag out and mean yes.
    default = header.metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    if bos_id is None or not header.metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    bos = tokens[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )


def _tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """What a tokenizer class of transformers (any version) needs beside ``tokenizer.json``."""
    tokens = header.array("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": _context_length(header),
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = header.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(token_id, int) and token_id < len(tokens):
            config[f"{ours}_token"] = tokens[token_id]
    if template := header.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _context_length(header: GgufHeader) -> int:
    architecture = header.metadata.get("general.architecture")
    return int(header.metadata.get(f"{architecture}.context_length", 1 << 30))


def _convert_with_transformers(header: GgufHeader, directory: Path) -> None:
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
        tokenizer.save_pretrained(str(directory))
    # Which vocabularies it can convert, and what it raises otherwise, differs between its versions.
    except Exception as error:
        detail = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"its tokenizer ({header.metadata.get('tokenizer.ggml.model')}, "
            f"{header.metadata.get('tokenizer.ggml.pre')}) cannot be converted: {detail[0]}",
            where=str(header.path),
            hint="use the model's safetensors checkpoint, or a workload of token ids",
        ) from None
