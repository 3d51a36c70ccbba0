"""What the command lines of the four scripts share."""

from __future__ import annotations

import argparse
from pathlib import Path


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of a description, and names each option's default."""


def existing(text: str) -> Path:
    """A path that is there.

    :raises argparse.ArgumentTypeError: it is not.
    """
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"there is no {path}")
    return path


def head_directory(text: str) -> Path:
    """A directory that ``train.py`` wrote.

    :raises argparse.ArgumentTypeError: it lacks one of a head's two files.
    """
    for name in ("config.json", "model.safetensors"):
        if not Path(text, name).is_file():
            raise argparse.ArgumentTypeError(f"{text} is no head: it has no {name}")
    return Path(text)
