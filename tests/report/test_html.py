"""The HTML report: whole, closed to the network, escaped, readable in dark and light, fast."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from comparison_sample import AB, AB_INVALID, AB_SWEEP, BREAK_EVEN, COMPARED, FASTER, SWEEP
from sample import ANALYSIS, BARE, INVALID

from specbench.records import Analysis, Difference, Gate
from specbench.report.formats import html
from specbench.report.report import build_report

SAMPLES = {"run": ANALYSIS, "invalid": INVALID, "bare": BARE, **COMPARED}
VOID = {"meta", "br", "hr", "img", "input", "link"}
DRAWN = {"line", "rect", "circle", "path", "polyline"}
ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """Checks that tags nest, and keeps what they hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID | DRAWN, f"<{tag}/> does not close in HTML"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("name", SAMPLES)
def test_tags_nest_and_nothing_is_fetched(name: str) -> None:
    text = html.render(SAMPLES[name])
    page = Page(text)
    assert {"script", "link", "img", "iframe", "object", "embed"}.isdisjoint(tag for tag, _ in page.tags)
    assert not re.search(r"https?://|url\(|@import|\bsrc=|\bhref=", text)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    assert len(drawings) % 2 == 0  # each for a telephone and for a screen
    assert ("meta", {"charset": "utf-8"}) in page.tags


@pytest.mark.parametrize("name", SAMPLES)
def test_every_number_of_the_report_is_on_the_page(name: str) -> None:
    report, words = build_report(SAMPLES[name]), "".join(Page(html.render(SAMPLES[name])).words)
    for section in report.sections:
        assert section.headline in words
        for block in section.blocks:
            texts = getattr(block, "texts", list)()
            assert all(cell in words for row in texts for cell in row)
    assert report.headline in words
    assert all(gate.detail in words for gate in report.gates)


def test_hostile_names_are_text() -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>&'
    nasty = replace(
        AB,
        label=evil,
        scenario={"name": evil, "model": {"source": evil}},
        command=evil,
        comparisons=[
            replace(
                FASTER, index=index, baseline=evil, candidate=evil, point={evil: evil}, reasons=[evil], in_words=[evil],
                differences=[Difference(evil, evil, evil, evil, False)], gates=[Gate(evil, "warn", evil)],
                why_design=evil, ranges={evil: next(iter(FASTER.ranges.values()))},
            )
            for index in range(2)
        ],
    )  # fmt: skip
    points = [
        replace(p, axes={**p.axes, evil: evil}, variant=evil, error=evil if p.error else None) for p in SWEEP.points
    ]
    for analysis in (nasty, replace(nasty, comparisons=nasty.comparisons[:1]), replace(SWEEP, points=points)):
        text = html.render(analysis)
        page = Page(text)
        assert {"script", "img"}.isdisjoint(tag for tag, _ in page.tags)
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_words_and_marks_stand_out_from_the_page(dark: bool) -> None:
    style = html.render(BARE)
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colors = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6});", themes[1 if dark else 0]))
    assert "prefers-color-scheme: dark" in style
    for name, least in {
        **dict.fromkeys(("ink", "soft", "good", "bad", "warn", "calm", "plain"), 4.5),
        **dict.fromkeys(("a", "b", "device", "host", *(f"s{i}" for i in range(6))), 2.5),
    }.items():
        for ground in ("page", "card"):
            pair = sorted((luminance(colors[name]), luminance(colors[ground])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, (name, ground)


def test_reasons_come_before_figures() -> None:
    words = "".join(Page(html.render(AB_INVALID)).words)
    assert words.index("INVALID: tokens differ") < words.index("Effect")
    assert '<p class="alert bad">' in html.render(AB_INVALID)


def test_plots_of_each_kind() -> None:
    def labels(analysis: Analysis) -> list[str]:
        return [a["aria-label"] or "" for tag, a in Page(html.render(analysis)).tags if tag == "svg"][::2]

    single = ["Effects with intervals", "Effect of every unit over time", "Distribution of step times"]
    assert labels(AB) == single
    assert labels(AB_SWEEP) == [single[0], *(single[1:] * 4)]
    assert labels(SWEEP) == ["output tok/s against concurrency", "ms a step"]
    assert labels(BREAK_EVEN) == ["Speedup against concurrency", *labels(SWEEP)]
    assert labels(ANALYSIS) == ["ms a step"]
    assert labels(BARE) == []


def test_several_results_share_a_page() -> None:
    page = Page(html.render_several([("first", AB_SWEEP), ("second <b>", SWEEP)]))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in page.tags].count("article") == 2
    assert "second <b>" in "".join(page.words)


def test_comparisons_cost_alike_and_nothing_heavy_is_imported() -> None:
    code = """
        import json, sys
        sys.path[:0] = ["tests/report", "tests/measure"]
        from dataclasses import replace
        from call_counts import count_calls
        from comparison_sample import AB, FASTER, POOLED, make_units
        from specbench.report import reading  # what every command needs to read a result
        many = [
            replace(FASTER, index=i, point={"workload.concurrency": i + 1}, units=make_units(1, 0.5, 64, i))
            for i in range(50)
        ]
        from specbench.report.formats import html
        texts = []
        def render(count):
            texts.append(html.render(replace(AB, comparisons=many[:count], pooled=[POOLED])))
        render(1)
        calls = [count_calls(lambda: render(count)) for count in (10, 30, 50)]
        print(json.dumps({"calls": calls, "drawings": texts[-1].count("<svg"),
                          "heavy": [m for m in ("torch", "numpy", "pandas", "scipy", "rich") if m in sys.modules]}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = json.loads(done.stdout)
    assert found["drawings"] == 2 * (1 + 2 * 50)
    assert found["heavy"] == []
    few, more, most = found["calls"]
    assert most - more < 1.1 * (more - few)  # the last twenty cost what the twenty before them did
    assert most < 50 * 20_000
