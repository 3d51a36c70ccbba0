"""A head's files are refused by their headers, before anything is loaded and in the words that loading has for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from head_checkpoints import EAGLE3, MTP, SPECULATORS, Tensors, eagle3_tensors, mtp_tensors, write_head

from specbench.engine.config import DrafterSpec, ModelSpec
from specbench.engine.drafters.declaration import WeightsQuery
from specbench.engine.drafters.draft_weights import find_draft_weights
from specbench.engine.drafters.head_weights import load_head
from specbench.engine.models.presets import TINY
from specbench.errors import CheckpointError

Edit = Callable[[Tensors], object]

EAGLE3_DEFECTS: dict[str, Edit] = {
    "no fc": lambda t: t.pop("fc.weight"),
    "no q_proj": lambda t: t.pop("midlayer.self_attn.q_proj.weight"),
    "no lm_head": lambda t: t.pop("lm_head.weight"),
    "no hidden norm": lambda t: t.pop("midlayer.hidden_norm.weight"),
    "narrow fc": lambda t: t.update({"fc.weight": torch.zeros(64, 128)}),
    "k_proj of plain attention": lambda t: t.update({"midlayer.self_attn.k_proj.weight": torch.zeros(32, 64)}),
    "norm in two dimensions": lambda t: t.update({"norm.weight": torch.zeros(1, 64)}),
    "embedding of another vocabulary": lambda t: t.update({"embed_tokens.weight": torch.zeros(96, 64)}),
    "bias": lambda t: t.update({"midlayer.self_attn.q_proj.bias": torch.zeros(64)}),
    "unknown": lambda t: t.update({"mask_hidden": torch.zeros(1, 192)}),
    "short d2t": lambda t: t.update({"d2t": torch.zeros(95, dtype=torch.int64)}),
    "d2t of a column": lambda t: t.update({"d2t": torch.zeros(96, 1, dtype=torch.int64)}),
    "short t2d": lambda t: t.update({"t2d": torch.zeros(96, dtype=torch.bool)}),
    "fractions in d2t": lambda t: t.update({"d2t": torch.zeros(96)}),
    "fractions in t2d": lambda t: t.update({"t2d": torch.zeros(512)}),
    "whole numbers in fc": lambda t: t.update({"fc.weight": torch.zeros(64, 192, dtype=torch.int64)}),
    "no map": lambda t: (t.pop("d2t"), t.pop("t2d")),
    "empty": lambda t: t.clear(),
}
MTP_DEFECTS: dict[str, Edit] = {
    "no enorm": lambda t: t.pop("modules.0.enorm.weight"),
    "no o_proj": lambda t: t.pop("modules.1.self_attn.o_proj.weight"),
    "narrow eh_proj": lambda t: t.update({"modules.1.eh_proj.weight": torch.zeros(64, 64)}),
    "bias": lambda t: t.update({"modules.1.mlp.up_proj.bias": torch.zeros(64)}),
    "embedding of one module": lambda t: t.update({"modules.0.embed_tokens.weight": torch.zeros(512, 64)}),
    "a third module": lambda t: t.update({"modules.2.enorm.weight": torch.zeros(64)}),
    "whole numbers in hnorm": lambda t: t.update({"modules.0.hnorm.weight": torch.ones(64, dtype=torch.int32)}),
    "empty": lambda t: t.clear(),
}
CASES = [
    *(("eagle3", EAGLE3, what) for what in EAGLE3_DEFECTS),
    *(("eagle3", SPECULATORS, what) for what in ("no q_proj", "short t2d", "whole numbers in fc")),
    *(("mtp", MTP, what) for what in MTP_DEFECTS),
]


def _broken(directory: Path, naming: str, what: str, *, pickled: bool = False) -> Path:
    tensors = mtp_tensors() if naming == MTP else eagle3_tensors()
    (MTP_DEFECTS if naming == MTP else EAGLE3_DEFECTS)[what](tensors)
    return write_head(directory, naming, tensors, pickled=pickled)


def _refusal(refuse: Callable[[], Any]) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        refuse()
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
@pytest.mark.parametrize(("drafter", "naming", "what"), CASES)
def test_a_head_is_refused_alike_before_and_when_it_is_loaded(
    tmp_path: Path, drafter: str, naming: str, what: str, pickled: bool
) -> None:
    directory = _broken(tmp_path / "head", naming, what, pickled=pickled)
    spec, target = DrafterSpec(drafter, 2, model=str(directory)), ModelSpec("tiny")
    planned = _refusal(lambda: find_draft_weights(WeightsQuery(spec, target, TINY.config)))
    loaded = _refusal(lambda: load_head(drafter, spec, target, TINY.config, torch.float32))
    assert str(planned) == str(loaded)
    assert str(planned.where).startswith(f"drafter.model: {directory}")


@pytest.mark.parametrize(("naming", "what"), [(EAGLE3, "no fc"), (MTP, "no enorm")])
def test_headers_are_compared_without_torch(tmp_path: Path, naming: str, what: str) -> None:
    directory = _broken(tmp_path / "head", naming, what, pickled=True)
    code = (
        "import sys; from pathlib import Path; from specbench.engine.drafters.head_formats import read_head_config\n"
        "from specbench.errors import CheckpointError\n"
        "try: read_head_config(Path(sys.argv[1]))\n"
        "except CheckpointError as error: print(error.what)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    said, has_torch = done.stdout.splitlines()
    assert said.startswith("the tensors do not fit the configuration: missing ")
    assert has_torch == "False"
