"""Prompt lookup: what followed the last n tokens the last time they occurred is proposed again.

The idea is that of prompt lookup decoding (Saxena, 2023): no model, and good drafts where the output repeats its input.
Here it is one device program over all requests, with no loop over them and nothing for the host to wait for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DraftState, LookupDrafter
from specbench.errors import InputError


class NgramDrafter(LookupDrafter):
    """Looks for the longest n in ``max_ngram`` .. ``min_ngram`` whose last n tokens occurred before.

    Of several occurrences the most recent counts. Its continuation is proposed up to the end of what is known, so
    there may be fewer than K proposals; places without one hold the last token.

    :raises InputError: not 1 <= min_ngram <= max_ngram.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        if spec.min_ngram < 1:
            raise InputError(f"must be at least 1, found {spec.min_ngram}", where="drafter.min_ngram")
        if spec.max_ngram < spec.min_ngram:
            raise InputError(
                f"must be at least min_ngram, which is {spec.min_ngram}, found {spec.max_ngram}",
                where="drafter.max_ngram",
            )
        self.max_ngram = spec.max_ngram
        self.min_ngram = spec.min_ngram

    @runtime_operator("ngram")
    def propose(self, state: DraftState, slots: Tensor, draft_len: int, max_num_tokens: int | None) -> None:
        """See :class:`LookupDrafter`."""
        if draft_len == 0:
            state.num_draft_tokens.index_fill_(0, slots, 0)
            return
        if max_num_tokens is None and slots.device.type == "cpu":
            max_num_tokens = int(state.num_tokens.index_select(0, slots).amax())
        token_ids = state.token_ids[:, :max_num_tokens].index_select(0, slots)
        # A slot that was never used (padding's) has no last token; column 0 stands in for it.
        last = (state.num_tokens.index_select(0, slots).unsqueeze(1) - 1).clamp_(min=0)
        end = self._last_match(token_ids, last)
        # Without a match the continuation starts past the last token: nothing is left to propose.
        num_proposed = (last - end).clamp_(max=draft_len)
        columns = end + torch.arange(1, draft_len + 1, device=slots.device)
        drafts = token_ids.gather(1, columns.minimum(last))
        state.draft_token_ids[:, :draft_len].index_copy_(0, slots, drafts)
        state.num_draft_tokens.index_copy_(0, slots, num_proposed.squeeze(1))

    def _last_match(self, token_ids: Tensor, last: Tensor) -> Tensor:
        """Column where the best earlier occurrence ends, ``last`` itself where there is none; [B, 1] int64.

        :param token_ids: [B, L] int64.
        :param last: [B, 1] int64, the column of the last token.
        """
        num_columns = token_ids.shape[1]
        max_length = min(self.max_ngram, num_columns)
        # int32 halves the traffic. Columns count from 1, since 0 stands for no match.
        columns = torch.arange(1, num_columns + 1, dtype=torch.int32, device=token_ids.device)
        suffix = token_ids.gather(1, (last - torch.arange(max_length, device=last.device)).clamp_(min=0))
        # An occurrence must end before the last token, or nothing known follows it.
        matches = (token_ids == suffix[:, :1]) & (columns <= last)
        end = torch.zeros_like(last)
        for length in range(1, max_length + 1):
            back = length - 1
            if back:
                # Column i of `matches` stands for occurrences of the last `length` tokens that end in column i + back.
                matches = matches[:, 1:] & (token_ids[:, : num_columns - back] == suffix[:, back:length])
            if length >= self.min_ngram:
                found = (columns[back:] * matches).amax(dim=1, keepdim=True)
                end = torch.where(found > 0, found, end)
        return torch.where(end > 0, end - 1, last)
