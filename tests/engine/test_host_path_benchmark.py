"""The benchmark of the host path: what does not depend on the machine holds in a short run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("host_path")
    command = [sys.executable, str(ROOT / "benchmarks" / "host_path.py"), "--batch", "3", "--rounds", "2"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True, timeout=240)
    assert (out / "host_path.md").read_text() == done.stdout.removesuffix("\n")
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return json.loads((folder / "host_path.json").read_text())


def arms(found: Any, group: str, draft_len: int) -> dict[str, Any]:
    """Variant -> its row, of lengths that are alike."""
    rows = [row for row in found["arms"] if (row["group"], row["draft_len"]) == (group, draft_len)]
    return {row["variant"]: row for row in rows if row["lengths"] == "alike"}


def test_row_1_1_and_1_2_appends_and_copies_of_a_steady_step(found: Any) -> None:
    for draft_len in (0, 5):
        rows = arms(found, "sampling_params", draft_len)
        refilled = rows["refill"]["counted_per_step"]
        assert refilled["sampling_params.appends"] == 3 * 3 * (draft_len + 2)
        assert refilled["sampling_params.copies"] == 6
        # One step of a turn fills, the others find what they need.
        for variant in ("signature", "device_gather"):
            counted = rows[variant]["counted_per_step"]
            assert counted["sampling_params.fills"] == pytest.approx(1 / 11)
            assert counted["sampling_params.hits"] == pytest.approx(10 / 11)


def test_row_2_1_and_2_2_bytes_by_formula(found: Any) -> None:
    rows = arms(found, "block_staging", 0)
    bounded = rows["bounded"]["counted_per_step"]
    assert bounded["block_staging.bytes"] == bounded["bounded_bytes_by_formula"]
    assert rows["full"]["counted_per_step"]["block_staging.bytes"] > 3 * 2 * 8192 * 4 - 1
    for row in found["staging"]:
        assert row["bytes_per_step"] == row["bytes_by_formula"]
    reference = {row["variant"]: row["bytes_per_step"] for row in found["staging"] if row["num_pools"] == 2}
    assert reference == {"full": 33_554_432, "bounded": 917_504}


def test_row_2_5_hits_of_the_steady_path(found: Any) -> None:
    for staging in ("bounded", "full"):
        rows = arms(found, f"input_prep, {staging} staging", 0)
        assert rows["steady_state"]["counted_per_step"]["input_prep.hits"] == pytest.approx(10 / 11)
        assert rows["rebuild"]["counted_per_step"]["input_prep.full_passes"] == 1


def test_rows_2_3_and_2_5_are_inactive_under_speculation(found: Any) -> None:
    counted = arms(found, "all", 5)["recommended"]["counted_per_step"]
    assert counted["input_prep.hits"] == 0
    assert counted["block_staging.gated_steps"] == 1
    assert (
        counted["block_staging.columns"]
        == arms(found, "all", 5)["baselines"]["counted_per_step"]["block_staging.columns"]
    )


def test_the_curve_has_every_number_of_rows(found: Any) -> None:
    rows = {(row["draft_len"], row["rows"], row["variant"]) for row in found["fills"]}
    assert rows == {
        (draft_len, batch_size * (draft_len + 1), variant)
        for draft_len in (0, 5)
        for batch_size in (1, 2)
        for variant in ("refill", "signature", "device_gather")
    }


def test_no_paths_of_the_machine(folder: Path) -> None:
    text = (folder / "host_path.json").read_text() + (folder / "host_path.md").read_text()
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
