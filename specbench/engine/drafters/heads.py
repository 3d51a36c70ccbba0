"""Draft heads that ship with the package: which target and drafter each is for, and where its files are. No torch here.

A head's directory holds ``config.json``, ``model.safetensors`` and ``CARD.md``: what it was trained on, for how long,
and what it accepts. Other packages declare a :class:`Head` of theirs under the entry point group ``specbench.heads``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CARD_NAME = "CARD.md"
_PACKAGE_DATA = Path(__file__).parents[2] / "heads"


@dataclass(frozen=True)
class Head:
    """One head.

    :param drafter: that computes with it.
    :param target: preset of the model that it was trained for.
    """

    drafter: str
    target: str
    directory: Path

    @property
    def is_here(self) -> bool:
        """Whether its files are in this installation."""
        return (self.directory / "config.json").is_file()

    def read_card_line(self) -> str:
        """The first line of its card that is neither a heading nor empty; empty where there is no card."""
        try:
            lines = (self.directory / CARD_NAME).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return ""
        return next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")


SMOLLM2_135M_EAGLE3 = Head("eagle3", "smollm2-135m", _PACKAGE_DATA / "smollm2-135m-eagle3")
SMOLLM2_135M_MTP = Head("mtp", "smollm2-135m", _PACKAGE_DATA / "smollm2-135m-mtp")
