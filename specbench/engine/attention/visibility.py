"""Which cells the rows of generation requests look at."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_cells(kv_lens: Tensor, num_rows: int, width: int, visible: Tensor | None) -> Tensor:
    """[N, num_rows, width] bool, of each request's first ``width`` cells.

    :param kv_lens: [N] int64, tokens the last row attends to, at most ``width``.
    :param visible: as :attr:`specbench.engine.attention.metadata.AttentionMetadata.visible`, of these requests.
    """
    columns = torch.arange(width, device=kv_lens.device)
    if visible is None:
        first_unseen = kv_lens.unsqueeze(1) + torch.arange(1 - num_rows, 1, device=kv_lens.device)
        return columns < first_unseen.unsqueeze(2)
    num_last = visible.shape[2]
    first = (kv_lens - num_last).view(-1, 1, 1)
    last = (first + torch.arange(num_last, device=kv_lens.device)).expand_as(visible)
    return (columns < first).expand(-1, num_rows, -1).scatter(2, last, visible)
