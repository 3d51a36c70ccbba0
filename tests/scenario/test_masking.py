"""What of a command or a scenario reaches a result."""

from __future__ import annotations

import pytest

from specbench.scenario.masking import MASK, is_secret, mask, mask_scenario


def test_folders_may_be_called_anything_and_urls_may_not() -> None:
    masked = mask_scenario({"process": {"python": "/opt/token=abc/python"}, "model": {"source": "https://u:p@h/m"}})
    assert masked["process"]["python"] == "/opt/token=abc/python"
    assert masked["model"]["source"] == f"https://{MASK}@h/m"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OMP_NUM_THREADS", "4", False),
        ("LD_PRELOAD", "/usr/lib/libtcmalloc.so", False),
        ("HF_TOKEN", "x", True),
        ("AWS_SECRET_ACCESS", "x", True),
        ("PROXY", "https://user:hush@host", True),
    ],
)
def test_variables_that_look_like_secrets(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_a_command_keeps_what_is_no_secret() -> None:
    command = "specbench ab x.yaml --candidate process.env.A=x,optimizations.overlap=on --budget 5m"
    assert mask(command) == command
