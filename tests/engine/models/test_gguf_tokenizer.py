"""Tokenizers inside GGUF files: the same ids as the tokenizer they were made of, for every splitting rule."""

import json

import gguf
import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from specbench.engine.models.gguf_header import read_header
from specbench.engine.models.gguf_tokenizer import tokenizer_directory, write_tokenizer
from specbench.errors import CheckpointError

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1984, isn't it?",
    "def main():\n    return 12345 + 678\n\n\nprint(main())  # prints 13023\r\n",
    "Ünïcödé text, naïve café; 数字 \uff11\uff12\uff13 and emoji 🙂🙂.",
    "  spaces   and\ttabs\n\n\n and CAPS WE'LL SEE, it's they'RE",
] * 4
TEXTS = [
    *CORPUS[:4],
    "<|im_start|>user\nHow much is 2024 - 1999?<|im_end|>\n<|im_start|>assistant\n",
    "é vs e\u0301, \u00a0nbsp",
    " 7",
    "",
]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

# The splitting rules as the models' published tokenizer.json files spell them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), byte_level(use_regex=False)]


ORIGINALS = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "gpt-2": [byte_level()],
    "llama-bpe": split(LLAMA3),
    "qwen2": split(LLAMA3.replace("{1,3}", "")),
}


def train(pre):
    """A byte-level BPE tokenizer over the corpus, with the splitting rule of a family."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(ORIGINALS[pre])
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_gguf(path, tokenizer, *, model="gpt2", pre="smollm", **values):
    described = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in described["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in values.items():
        getattr(writer, f"add_{key}")(value)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("pre", sorted(ORIGINALS))
def test_ids_are_those_of_the_original(tmp_path, pre):
    original = train(pre)
    write_tokenizer(read_header(write_gguf(tmp_path / "m.gguf", original, pre=pre)), tmp_path)
    ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.get_vocab_size() == original.get_vocab_size()
    for text in TEXTS:
        expected = original.encode(text, add_special_tokens=False)
        found = ours.encode(text, add_special_tokens=False)
        assert found.ids == expected.ids, text
        normal = original.normalizer.normalize_str(text) if original.normalizer else text
        assert ours.decode(found.ids, skip_special_tokens=False) == normal


def test_transformers_reads_it_with_its_chat_template(tmp_path):
    original = train("smollm")
    write_tokenizer(read_header(write_gguf(tmp_path / "m.gguf", original)), tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert tokenizer.model_max_length == 512
    messages = [{"role": "user", "content": "It's 1984"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nIt's 1984<|im_end|>\n"
    assert tokenizer(text).input_ids == original.encode(text).ids


def test_the_beginning_token_is_added_where_the_file_says_so(tmp_path):
    original = train("llama-bpe")
    for name, values, expected in (
        ("default", {}, [1]),
        ("no", {"add_bos_token": False}, []),
    ):
        directory = tmp_path / name
        directory.mkdir()
        write_tokenizer(read_header(write_gguf(directory / "m.gguf", original, pre="llama-bpe", **values)), directory)
        ours = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        assert ours.encode("fox").ids == expected + original.encode("fox").ids


def test_a_conversion_is_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf", train("smollm"))
    directory = tokenizer_directory(path)
    assert directory.is_relative_to(tmp_path / "cache")
    before = (directory / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer_directory(path) == directory
    assert (directory / "tokenizer.json").stat().st_mtime_ns == before
    write_gguf(path, train("gpt-2"), pre="gpt-2", add_bos_token=False)
    assert tokenizer_directory(path) != directory


def test_a_tokenizer_of_no_known_kind_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write_gguf(tmp_path / "m.gguf", train("smollm"), model="bert", pre="jina")
    with pytest.raises(CheckpointError, match=r"its tokenizer \(bert, jina\) cannot be converted"):
        write_tokenizer(read_header(path), tmp_path)


def test_a_file_without_tokenizer_is_one_error(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        write_tokenizer(read_header(tmp_path / "m.gguf"), tmp_path)
