"""Multi-token prediction (MTP): a decoder layer over a token's embedding and the target's last hidden state.

The module is that of DeepSeek-V3 (DeepSeek-AI, 2024). At position p it reads the embedding of the token at p + 1 and
the hidden state of p, after the target's final norm; what it puts out gives, behind a norm of its own, the logits of
the token at p + 2. A module that is alone is run again for every further draft token, with its own output, before that
norm, in place of the target's. Of several, module i (from 0) drafts the token at place i: it reads, over the same rows,
what module i - 1 put out at p and the embedding of the token at p + 1 + i. Embedding and head are the target's where
the checkpoint brings none.

Shapes: T token rows, U with the rows before them, B requests that go on, H hidden size, Vd draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import DrafterHost, DrafterNeeds, DraftState, DraftStep, TargetRows
from specbench.engine.drafters.earlier_rows import EarlierRows, WidenedRows
from specbench.engine.drafters.head_layers import build_norm, fill_layer, move_tensors
from specbench.engine.drafters.head_weights import LoadedHead, load_head
from specbench.engine.drafters.model_drafter import DraftHead, ModelDrafter
from specbench.engine.models.linear import Linear, PlainEmbedding, choose_layout
from specbench.engine.models.llama import AttentionLayer
from specbench.engine.models.rotary import RotaryEmbedding


class MtpHead(DraftHead):
    """The computation of one module.

    :param loaded: all modules.
    :param module: its number, which is that of its layer in the cache.
    """

    def __init__(self, loaded: LoadedHead, host: DrafterHost, module: int = 0) -> None:
        decoder, prefix = loaded.config.decoder, f"modules.{module}."
        own_tensors = {name: tensor for name, tensor in loaded.tensors.items() if name.startswith(prefix)}
        moved = move_tensors(own_tensors, host)
        layout = choose_layout(host.dtype, host.device)
        self._target = host.target
        self._rotary = RotaryEmbedding(decoder, host.device)
        self._embedding_norm = build_norm(moved[f"{prefix}enorm.weight"], decoder)
        self._hidden_norm = build_norm(moved[f"{prefix}hnorm.weight"], decoder)
        self._join = layout.linear(moved[f"{prefix}eh_proj.weight"], None)
        self._layer = AttentionLayer(module, decoder)
        fill_layer(self._layer, moved, prefix, decoder, layout)
        self._norm = build_norm(moved[f"{prefix}norm.weight"], decoder)
        own = moved.get(f"{prefix}embed_tokens.weight")
        self._embedding = None if own is None else PlainEmbedding(own)
        self.vocabulary = None if loaded.vocabulary is None else loaded.vocabulary.to(host.device)
        self._head: Linear | None = None
        weight = moved.get(f"{prefix}lm_head.weight")
        if weight is None and self.vocabulary is not None:
            weight = host.target.head_rows(self.vocabulary)
        if weight is not None:
            self._head = layout.linear(weight, None)

    def first(self, rows: TargetRows, next_token_ids: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`DraftHead`."""
        return self.next(next_token_ids, rows.positions, rows.hidden, attention)

    def next(self, token_ids: Tensor, positions: Tensor, hidden: Tensor, attention: AttentionOperator) -> Tensor:
        """See :class:`DraftHead`."""
        embed = self._target.embed if self._embedding is None else self._embedding.forward
        embedding = self._embedding_norm.forward(embed(token_ids))
        joined = self._join.forward(torch.cat([embedding, self._hidden_norm.forward(hidden)], dim=-1))
        return self._layer.forward(joined, self._rotary.rotations(positions), attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See :class:`DraftHead`."""
        normed = self._norm.forward(hidden)
        return self._target.compute_logits(normed) if self._head is None else self._head.forward(normed).float()


class MtpDrafter(ModelDrafter):
    """Drafts with one module that is used again for every draft token, or with one of several for each.

    Several all run over the rows of the step. Module i reads i tokens further ahead than the target has: in the last i
    rows that are committed, drafts. Pairs with drafts are not to stay in its cache, so that the last committed rows,
    one fewer than there are modules, are run again with the next step's.

    :raises InputError: more draft tokens than several modules draft; or the module's shapes are unlike the target's.
    :raises CheckpointError: its files are unreadable or unlike their configuration, or a weight is not finite.
    """

    def __init__(self, spec: DrafterSpec, host: DrafterHost | None = None) -> None:
        super().__init__(spec, host)
        assert host is not None
        loaded = load_head("mtp", spec, host.config.model, host.target.config, host.dtype)
        decoder, num_modules = loaded.config.decoder, loaded.config.num_modules_for(spec.max_draft_len)
        self._modules = [MtpHead(loaded, host, module) for module in range(num_modules)]
        self.head = self._modules[0]
        self.attention = host.build_attention(num_modules, decoder.num_heads, decoder.num_kv_heads, decoder.head_dim)
        self.needs = DrafterNeeds(num_kv_layers=num_modules)
        self._draft, self._earlier = super().draft, EarlierRows(num_modules - 1, host)
        if num_modules > 1:
            self._draft = self._draft_in_turn

    def draft(self, state: DraftState, step: DraftStep) -> None:
        """See :class:`~specbench.engine.drafters.base.Drafter`."""
        self._draft(state, step)

    def _draft_in_turn(self, state: DraftState, step: DraftStep) -> None:
        """With several modules, of which all run in every step: their cache follows."""
        rows = self._earlier.widen(step.target_rows)
        self._prepare(rows.metadata)
        num_tokens = _lengths_of(state, step)[rows.slots]
        hidden, goes_on = rows.hidden, bool(step.slots.shape[0])
        for place, module in enumerate(self._modules):
            token_ids = _read_ahead(state, rows, num_tokens, 1 + place, min(place, step.draft_len))
            hidden = module.next(token_ids, rows.positions, hidden, self.attention)
            if goes_on and place < step.draft_len:
                drafts = self._choose(state, step, place, hidden[rows.ends], module)
                state.draft_token_ids[:, place].index_copy_(0, step.slots, drafts)
        if goes_on:
            state.num_draft_tokens.index_fill_(0, step.slots, step.draft_len)

    def fill_cache(self, blocks: Tensor, slot: int) -> None:
        """See :class:`~specbench.engine.drafters.base.Drafter`."""
        super().fill_cache(blocks, slot)
        self._earlier.forget(slot)


def _lengths_of(state: DraftState, step: DraftStep) -> Tensor:
    """[S] committed tokens of each slot. Those of a prompt that goes on are not counted in the state yet: no bound."""
    lengths = torch.full_like(state.num_tokens, torch.iinfo(torch.int64).max)
    return lengths.index_copy_(0, step.slots, state.num_tokens[step.slots])


def _read_ahead(state: DraftState, rows: WidenedRows, num_tokens: Tensor, distance: int, num_drafts: int) -> Tensor:
    """The tokens [U] ``distance`` places behind the rows: committed ones, then the first ``num_drafts`` draft tokens.

    What stands behind these is stale, and so is what is made of it: the rows are void, or run again in the next step.

    :param num_tokens: [U] committed tokens of each row's sequence.
    """
    positions = rows.positions + distance
    token_ids = state.token_ids[rows.slots, positions]
    if not num_drafts:
        return token_ids
    places = positions - num_tokens
    drafts = state.draft_token_ids[rows.slots, places.clamp(0, num_drafts - 1)]
    return torch.where(places < 0, token_ids, drafts)
