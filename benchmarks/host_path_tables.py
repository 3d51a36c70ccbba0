"""The figures of the host path as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def render(result: Row) -> str:
    """The whole page."""
    arms = result["arms"]
    settings = result["settings"]
    parts = [
        "# What the host does for a steady decode step",
        _introduction(settings, result["environment"]),
        "## Sampling parameters",
        "`populate_sampling_params`, with `block_staging=bounded` and `input_prep=rebuild`.",
        _arm_table([row for row in arms if row["group"] == "sampling_params"], _filled),
        "Host time of one fill over logits rows, requests times K + 1; ratios are to `refill`. Of `device_gather` this"
        " is the host's part with the enqueueing of its program; on CUDA the host launches its kernels, too.",
        _fill_table(result["fills"]),
        "## Block offsets",
        "`stage_block_offsets`, with `sampling_params=signature` and `input_prep=rebuild`. One pool; by formula means"
        " rows x 2 x ceil(longest KV length / tokens per block) x 4 x pools, in every step.",
        _arm_table([row for row in arms if row["group"] == "block_staging"], _staged),
        "At the reference shape, staged alone, in memory fresh from PyTorch's allocator and from the pool of the CPU"
        " device.",
        _staging_table(result["staging"]),
        "## Whole preparation",
        "`prepare_inputs`; baselines are `refill`, `full`, `rebuild`. With lengths `spread` over the batch, new blocks"
        " lie in many columns, and the steady path stages all from the first of them on.",
        _arm_table([row for row in arms if row["headline"] == "prepare_inputs" and not row["draft_len"]], _steady),
        "## Under speculation",
        "`input_prep` and `block_staging` are inactive with a drafter: no hits, full width in every step.",
        _arm_table([row for row in arms if row["headline"] == "prepare_inputs" and row["draft_len"]], _steady),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(settings: Row, environment: Row) -> str:
    return (
        f"Microseconds of host time a step, median over {settings['rounds']} rounds [10th, 90th percentile]; ratios are"
        " those within a round, all arms in turns in one run. A full batch of sampled requests on the preset `tiny`,"
        f" forced acceptance, max_seq_len {settings['max_seq_len']}, {settings['tokens_per_block']} tokens a block,"
        f" prompts of {settings['longest_context']} tokens (`alike`) or from {settings['shortest_context']} to as many"
        " (`spread`). Host code runs for real; the device computes nothing.\n\n"
        f"{environment['cpu']['model']}, {environment['cpu']['usable_cores']} cores, Python {environment['python']},"
        f" PyTorch {environment['packages']['torch']}; load average at the start {settings['load_average']:.2f}, at the"
        f" end {environment['load_average'][0]:.2f}; {settings['seconds']:.0f} s."
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], num_text: int) -> str:
    """``num_text`` columns of text on the left, numbers behind them."""
    rule = ["---"] * num_text + ["---:"] * (len(header) - num_text)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def _spread(found: Row, digits: int) -> str:
    median, low, high = (f"{found[name]:,.{digits}f}" for name in ("median", "p10", "p90"))
    return f"{median} [{low}, {high}]"


def _ratio(found: Row, *, is_baseline: bool) -> str:
    """A ratio, and how many times cheaper that is."""
    return "1" if is_baseline else f"{_spread(found, 4)}, 1/{1 / found['median']:.1f}"


def _arm_table(rows: Sequence[Row], describe: Any) -> str:
    header = ("group", "variant", "lengths", "batch", "K", "us", "ratio to the baseline", "a step")
    return _table(
        header,
        [
            (
                row["group"],
                f"`{row['variant']}`",
                row["lengths"],
                str(row["batch_size"]),
                str(row["draft_len"]),
                _spread(row["us"][row["headline"]], 1),
                _ratio(row["ratio_to_baseline"][row["headline"]], is_baseline=row["is_baseline"]),
                describe(row),
            )
            for row in rows
        ],
        num_text=3,
    )


def _counted(row: Row, toggle: str, counter: str) -> float:
    return float(row["counted_per_step"].get(f"{toggle}.{counter}", 0))


def _filled(row: Row) -> str:
    appends, copies, num_bytes = (_counted(row, "sampling_params", name) for name in ("appends", "copies", "bytes"))
    return f"{appends:,.0f} appends, {copies:.2f} copies, {num_bytes:,.0f} bytes"


def _staged(row: Row) -> str:
    num_bytes, formula = _counted(row, "block_staging", "bytes"), row["counted_per_step"]["bounded_bytes_by_formula"]
    if _counted(row, "block_staging", "gated_steps"):
        return f"{num_bytes:,.0f} bytes, gated"
    if row["variant"] == "full":
        return f"{num_bytes:,.0f} bytes"
    return f"{num_bytes:,.0f} bytes, {'as' if num_bytes == formula else 'NOT as'} by formula"


def _steady(row: Row) -> str:
    hits, steps = (_counted(row, "input_prep", name) for name in ("hits", "full_passes"))
    return f"{hits:.2f} hits, {steps:.2f} full passes, {_counted(row, 'block_staging', 'bytes'):,.0f} bytes of offsets"


def _fill_table(rows: Sequence[Row]) -> str:
    points = sorted({(row["draft_len"], row["rows"], row["batch_size"]) for row in rows})
    found = {(row["draft_len"], row["rows"], row["variant"]): row for row in rows}
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    header = ["K", "batch", "rows", *(f"{variant}, us" for variant in variants)]
    header += [f"{variant}, ratio" for variant in variants[1:]]
    cells = []
    for draft_len, num_rows, batch_size in points:
        each = [found[draft_len, num_rows, variant] for variant in variants]
        times = [_spread(row["us"], 1) for row in each]
        ratios = [f"{row['ratio_to_refill']['median']:.4f}" for row in each[1:]]
        cells.append([str(draft_len), str(batch_size), str(num_rows), *times, *ratios])
    return _table(header, cells, num_text=0)


def _staging_table(rows: Sequence[Row]) -> str:
    header = ("pools", "variant", "memory", "us", "ratio to torch.empty", "ratio to full", "page faults")
    header += ("bytes a step", "by formula")
    cells = [
        (
            str(row["num_pools"]),
            f"`{row['variant']}`",
            row["memory"],
            _spread(row["us"], 1),
            f"{row['ratio_to_torch_empty']['median']:.3f}",
            f"{row['ratio_to_full']['median']:.4f}",
            f"{row['page_faults']['median']:,.0f}",
            f"{row['bytes_per_step']:,.0f}",
            f"{row['bytes_by_formula']:,}",
        )
        for row in rows
    ]
    return _table(header, cells, num_text=3)
