"""From a conversation and the model's answers to prompt ids."""

from __future__ import annotations

import pytest

from specbench.errors import WorkloadError
from specbench.workloads.base import Conversation, ConversationPrompter
from specbench.workloads.chat_template import Message
from specbench.workloads.tokenizer import Tokenizer

CHAT = Conversation("chat", "a", ("first", "second", "third"), None, None, 0, (Message("system", "be brief"),))


def test_a_later_turn_holds_the_earlier_turns_and_the_models_own_answers(byte_tokenizer: Tokenizer) -> None:
    answers = [byte_tokenizer.encode("answer one"), byte_tokenizer.encode("answer two")]
    prompt = ConversationPrompter(byte_tokenizer).prompt_for(CHAT, 2, answers)
    assert byte_tokenizer.decode(prompt, skip_special_tokens=False) == (
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\nfirst<|im_end|>\n"
        "<|im_start|>assistant\nanswer one<|im_end|>\n"
        "<|im_start|>user\nsecond<|im_end|>\n"
        "<|im_start|>assistant\nanswer two<|im_end|>\n"
        "<|im_start|>user\nthird<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_of_an_answer_do_not_come_back(tiny_tokenizer: Tokenizer) -> None:
    prompter = ConversationPrompter(tiny_tokenizer)
    plain = tiny_tokenizer.encode("the dog")
    ended = [*plain, tiny_tokenizer.encode("<|im_end|>")[0]]
    assert prompter.prompt_for(CHAT, 1, [ended]) == prompter.prompt_for(CHAT, 1, [plain])


def test_given_ids_are_used_as_they_are_without_a_tokenizer() -> None:
    conversation = Conversation("ids", "a", None, (5, 6, 7), 4, 0)
    assert ConversationPrompter(None).prompt_for(conversation, 0, []) == [5, 6, 7]


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(WorkloadError, match="needs a tokenizer"):
        ConversationPrompter(None).prompt_for(CHAT, 0, [])


@pytest.mark.parametrize(("turn", "answers"), [(0, [[1]]), (1, []), (3, [[1], [2], [3]]), (-1, [])])
def test_a_turn_needs_exactly_the_answers_before_it(
    byte_tokenizer: Tokenizer, turn: int, answers: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match="turn"):
        ConversationPrompter(byte_tokenizer).prompt_for(CHAT, turn, answers)


def test_a_template_that_refuses_names_the_conversation(tiny_tokenizer: Tokenizer) -> None:
    late_system = Conversation("odd", "a", ("hi",), None, None, 0, (Message("user", "u"), Message("system", "s")))
    with pytest.raises(WorkloadError, match="system must come first") as caught:
        ConversationPrompter(tiny_tokenizer).prompt_for(late_system, 0, [])
    assert caught.value.where == "conversation odd, turn 0"
