"""Acceptance lengths by drafter, draft length and category, out of the folder of a sweep.

    specbench pull mt-bench
    specbench sweep scenarios/mt_bench_drafters.yaml --out results/mt_bench_drafters
    python benchmarks/acceptance.py results/mt_bench_drafters > results/mt_bench_drafters/acceptance.md

An acceptance length is committed tokens per request and target step, bonus included, weighted by step; only steps that
may draft count, and the last of a request, which is cut at its output cap, with what it committed. Greedy texts are the
same whatever drafts, near ties of bfloat16 apart. A draft tree is named, and the head where a drafter has several.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import specbench
from specbench.report.words import tree_words

SETTINGS = "subject.engine.drafter"
"""What a trial's line says of its drafter begins with this."""


def read_lengths(folder: Path) -> pd.DataFrame:
    """A row a request and point: drafter with its tree, draft_len, category, steps, committed tokens of these steps."""
    results = specbench.load_results(folder)
    requests = results.requests
    requests = requests[requests["accepted_lengths"].map(bool)]
    trials = results.trials.set_index("trial")
    points = trials.assign(drafter=name_drafters(trials)).loc[requests["trial"]]
    counted = requests["accepted_lengths"].map(lambda lengths: (len(lengths), sum(lengths))).tolist()
    return pd.DataFrame(
        {
            "drafter": points["drafter"].to_numpy(),
            "K": points["axes.draft_len"].to_numpy(),
            "category": requests["category"].to_numpy(),
            "steps": [steps for steps, _ in counted],
            "committed": [committed for _, committed in counted],
        }
    )


def name_drafters(trials: pd.DataFrame) -> list[str]:
    """``eagle3, a tree of 12 nodes (top_k 4, depth 4)``, by trial."""
    rows = trials.to_dict("records")
    heads: dict[str, set[str]] = {}
    for row in rows:
        heads.setdefault(row["axes.drafter"], set()).add(_text(row.get("subject.draft_model")))
    return [", ".join(filter(None, _drafter_parts(row, len(heads[row["axes.drafter"]] - {""}) > 1))) for row in rows]


def _drafter_parts(row: dict[str, Any], names_head: bool) -> list[str]:
    sizes = {key: row.get(f"{SETTINGS}.tree.{key}") for key in ("top_k", "depth", "num_nodes")}
    tree = {key: int(size) for key, size in sizes.items() if pd.notna(size)}
    return [row["axes.drafter"], _text(row.get("subject.draft_model")) if names_head else "", tree_words(tree)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def tabulate(lengths: pd.DataFrame) -> pd.DataFrame:
    """Acceptance length by drafter and K (rows) and category (columns), ``all`` first."""
    rows = ["drafter", "K"]
    whole = lengths.groupby(rows)[["committed", "steps"]].sum()
    parts = lengths.groupby([*rows, "category"])[["committed", "steps"]].sum()
    table = (parts["committed"] / parts["steps"]).unstack("category")
    table.insert(0, "all", whole["committed"] / whole["steps"])
    return table


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        table = tabulate(read_lengths(folder))
        print(f"`{folder}`\n")
        print("| " + " | ".join(["drafter", "K", *table.columns]) + " |")
        print("|" + "---|" * (len(table.columns) + 2))
        for (drafter, draft_len), values in table.iterrows():
            print("| " + " | ".join([str(drafter), str(draft_len), *(f"{value:.3f}" for value in values)]) + " |")
        print()


if __name__ == "__main__":
    main()
