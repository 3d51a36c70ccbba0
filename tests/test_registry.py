"""The contract every registry entry keeps, whoever wrote it: one test over all of them, by kind."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import math
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench import registry
from specbench.errors import CheckpointError, UnknownNameError

ROOT = Path(__file__).parents[1]
ENTRIES = [(kind, name) for kind, names in registry.ALL.items() for name in names]
DECLARATIONS = ("sim_presets", "drafters", "heads", "presets", "workloads", "formats", "optimizations")


def public_members(protocol: type) -> set[str]:
    """Names a protocol or base class declares, attributes included."""
    return {name for name in (*vars(protocol), *inspect.get_annotations(protocol)) if not name.startswith("_")}


def check_device(_: str, device: Any) -> None:
    from specbench.device.base import Device

    methods = {name for name in public_members(Device) if callable(getattr(Device, name, None))}
    assert {name for name in methods if not callable(getattr(device, name, None))} == set()
    assert list(inspect.signature(device).parameters)[:2] == ["tracer", "num_threads"]


def check_drafter(name: str, declaration: Any) -> None:
    import torch

    from specbench.engine.config import DrafterSpec
    from specbench.engine.drafters.base import Drafter, DrafterNeeds, DraftStep, LookupDrafter
    from specbench.engine.drafters.declaration import DrafterDeclaration, Role
    from tests.engine.drafters.head_cases import heads_for, last_rows, tiny_host, using_head

    assert isinstance(declaration, DrafterDeclaration)
    drafter = declaration.load_class()
    assert issubclass(drafter, Drafter)
    assert issubclass(drafter, LookupDrafter) is (declaration.role is not Role.MODEL)
    assert declaration.tree_builder is None or issubclass(declaration.load_class(tree=True), Drafter)
    assert isinstance(drafter.needs, DrafterNeeds)
    draft_len = 0 if name == "none" else 3
    spec, head = DrafterSpec(name, draft_len, model="random:tiny" if name == "draft_model" else None), heads_for(name)
    with contextlib.nullcontext() if head is None else using_head(head):
        built = drafter(spec, tiny_host(spec))
    assert built.max_draft_len == draft_len
    assert declaration.weights is not None or not built.needs.num_kv_layers, "layers in a KV cache are to be declared"
    tokens = torch.tensor([[5, 6, 7, 5, 6, 0], [9, 9, 9, 9, 0, 0], [1, 2, 3, 0, 0, 0], [4, 4, 0, 0, 0, 0]])
    state = types.SimpleNamespace(
        token_ids=tokens,
        num_tokens=torch.tensor([5, 4, 3, 2]),
        draft_token_ids=torch.full((4, draft_len), -1),
        num_draft_tokens=torch.full((4,), -1),
    )
    before = tokens.clone()

    rows, nobody = last_rows(built.needs, [0, 2], [5, 3]), torch.zeros(0, dtype=torch.int64)
    idle = dataclasses.replace(rows, ends=nobody, requests=nobody)
    with torch.inference_mode():
        built.draft(state, DraftStep(nobody, 0, 6, idle))
        assert (state.draft_token_ids == -1).all(), "a step in which nobody goes on proposes nothing"
        assert (state.num_draft_tokens == -1).all()
        built.draft(state, DraftStep(torch.tensor([0, 2]), draft_len, 6, rows))
    assert torch.equal(state.token_ids, before), "committed history is not the drafter's to write"
    assert torch.equal(state.num_tokens, torch.tensor([5, 4, 3, 2])), "no drafter accepts tokens"
    assert (state.draft_token_ids[[0, 2]] >= 0).all(), "every column gets a valid id"
    assert (state.draft_token_ids < 512).all()
    assert (state.draft_token_ids[[1, 3]] == -1).all(), "only the slots that were asked for"
    if draft_len:
        assert ((state.num_draft_tokens[[0, 2]] >= 0) & (state.num_draft_tokens[[0, 2]] <= draft_len)).all()
    built.fill_cache(torch.tensor([0]), 0)


def check_head(_: str, head: Any) -> None:
    import torch

    from specbench.engine.drafters.head_formats import read_head_config
    from specbench.engine.drafters.head_weights import open_head, read_vocabulary
    from specbench.engine.drafters.heads import Head

    assert isinstance(head, Head)
    assert head.drafter in registry.DRAFTERS
    assert head.is_here, "its files come with the package that declares it"
    assert len(head.read_card_line()) > 10, "a card says what it was trained on and what it accepts"
    config = read_head_config(head.directory, registry.PRESETS.load(head.target).config)
    assert config.kind == head.drafter
    num_bytes = sum(path.stat().st_size for path in head.directory.iterdir())
    assert num_bytes <= 20_000_000, "everyone who installs the package carries it"
    with open_head(head.directory, config) as tensors:
        weights = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
        vocabulary = read_vocabulary(tensors)
    assert set(weights) == set(config.expected_tensors())
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert vocabulary is None or len(vocabulary) == config.draft_vocab_size


def check_attention(_: str, attention: Any) -> None:
    from specbench.engine.attention.base import AttentionOperator

    assert issubclass(attention, AttentionOperator)
    assert not inspect.isabstract(attention)


def check_model(name: str, model: Any) -> None:
    import torch

    from specbench.engine.models.base import CausalLM
    from specbench.engine.models.loading import build_model
    from specbench.engine.models.presets import TINY

    assert issubclass(model, CausalLM)
    assert not inspect.isabstract(model)
    config = dataclasses.replace(TINY.config, architecture=name)
    built = build_model(config, dtype=torch.float32, device=torch.device("cpu"))
    expected = built.expected_tensors()
    assert sum(math.prod(shape) for shape in expected.values()) == config.num_parameters
    *most, last = expected
    for tensor in most:
        built.load_tensor(tensor, torch.full(expected[tensor], 0.01))
    with pytest.raises(CheckpointError, match=re.escape(last)):
        built.finish_loading()
    with pytest.raises(CheckpointError):
        built.load_tensor("model.nothing.weight", torch.zeros(1))
    built.load_tensor(last, torch.full(expected[last], 0.01))
    built.finish_loading()
    logits = built.compute_logits(torch.zeros(3, config.hidden_size))
    assert logits.shape == (3, config.vocab_size)
    assert logits.dtype == torch.float32


def check_preset(_: str, preset: Any) -> None:
    config = preset.config
    assert config.architecture in registry.MODELS
    assert config.num_heads % config.num_kv_heads == 0
    assert config.eos_token_ids
    assert max(config.eos_token_ids) < config.vocab_size
    assert preset.license
    if preset.wheel is not None:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", preset.wheel.requirement)


def check_sim_preset(_: str, preset: Any) -> None:
    from specbench.device.times import TimesPreset

    assert isinstance(preset, TimesPreset)
    assert preset.times.base_us > 0
    assert preset.source, "say what the times are computed from, and how"


def check_workload(name: str, workload: Any, folder: Path) -> None:
    from specbench.workloads.base import NATURAL, SYNTHETIC, WorkloadSettings
    from specbench.workloads.tokenizer import Tokenizer

    files = {
        "prompts": '{"prompt": "one"}\n{"turns": ["two", "three"]}\n',
        "mt_bench": '{"question_id": 81, "category": "writing", "turns": ["four", "five"]}\n',
    }
    path = None
    if name in files:
        path = folder / f"{name}.jsonl"
        path.write_text(files[name], encoding="utf-8")
    settings = WorkloadSettings(name, path=str(path) if path else None, num_requests=5, isl=8, osl=4)

    def build() -> Any:
        return workload(settings, vocab_size=512, tokenizer=Tokenizer.byte_level(512))

    built = build()
    assert built.kind == name
    assert built.label in (NATURAL, SYNTHETIC)
    conversations = built.conversations()
    assert sum(conversation.num_turns for conversation in conversations) == 5
    assert conversations == build().conversations(), "equal settings give equal inputs"
    assert len({conversation.conversation_id for conversation in conversations}) == len(conversations)


def check_format(_: str, render: Any) -> None:
    from specbench.records import Analysis, Gate, Point

    # What nothing could be measured of: every figure that may be missing is.
    text_fields = {"variant": "on", "model": "m", "drafter": "none", "acceptance": "strict", "workload": "w"}
    counts = {
        field.name: 1
        for field in dataclasses.fields(Point)
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in (*text_fields, "status")
    }
    point = Point(**text_fields, **counts, status="complete")
    gates = [Gate("load", "pass", "idle")]
    analysis = Analysis(
        kind="run", label="natural", scenario={"name": "empty"}, environment={}, points=[point], gates=gates
    )
    text = render(analysis)
    assert isinstance(text, str)
    assert text.endswith("\n")
    assert text == render(analysis), "the same analysis renders to the same text"


def check_toggle(name: str, toggle: Any) -> None:
    from specbench.engine.optimizations.base import Exactness, Toggle

    assert isinstance(toggle, Toggle)
    assert toggle.name == name
    assert toggle.summary
    assert toggle.source, "say where the idea comes from"
    assert isinstance(toggle.exactness, Exactness)
    assert set(toggle.production) <= set(registry.DEVICES)
    needed = [setting for variant in toggle.variants.values() for setting in variant.requires]
    for setting in (*toggle.requires, *toggle.conflicts, *needed):
        other, _, variant = setting.partition("=")
        assert variant in registry.OPTIMIZATIONS.load(other).variants, setting
    for variant in toggle.variants.values():
        assert variant.summary
        module, _, attribute = variant.builder.partition(":")
        builder = getattr(importlib.import_module(module), attribute)
        expected = 2 if toggle.shared is None else 3
        assert len(inspect.signature(builder).parameters) == expected, "(EngineConfig, Device) and what is shared"


CHECKS: dict[str, Callable[..., None]] = {
    "devices": check_device,
    "sim_presets": check_sim_preset,
    "drafters": check_drafter,
    "heads": check_head,
    "attention": check_attention,
    "models": check_model,
    "presets": check_preset,
    "workloads": check_workload,
    "formats": check_format,
    "optimizations": check_toggle,
}


def test_every_kind_has_a_contract() -> None:
    assert set(CHECKS) == set(registry.ALL)


@pytest.mark.parametrize(("kind", "name"), ENTRIES, ids=[f"{kind}-{name}" for kind, name in ENTRIES])
def test_entry_keeps_its_kinds_contract(kind: str, name: str, tmp_path: Path) -> None:
    check = CHECKS[kind]
    extra = (tmp_path,) if len(inspect.signature(check).parameters) == 3 else ()
    check(name, registry.ALL[kind].load(name), *extra)


@pytest.mark.parametrize(("kind", "name"), ENTRIES, ids=[f"{kind}-{name}" for kind, name in ENTRIES])
def test_entry_can_be_listed(kind: str, name: str) -> None:
    entry = registry.ALL[kind][name]
    assert re.fullmatch(r"[a-z_][\w.]*:[A-Za-z_]\w*", entry.target)
    assert 0 < len(entry.summary) <= 80
    assert "\n" not in entry.summary
    if kind != "models":
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name), "names are typed in shells and YAML"


@pytest.mark.parametrize("kind", DECLARATIONS)
def test_declarations_load_without_torch(kind: str) -> None:
    code = (
        "import sys; from specbench.registry import ALL; "
        "[ALL[sys.argv[1]].load(name) for name in ALL[sys.argv[1]]]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


def test_listing_imports_no_implementation() -> None:
    code = (
        "import json, sys; from specbench.registry import ALL; "
        "[(name, entry.summary) for names in ALL.values() for name, entry in names.items()]; "
        "print(json.dumps([m for m in sys.modules if m.startswith('specbench.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(json.loads(done.stdout)) == {"specbench.errors", "specbench.registry"}


@pytest.mark.parametrize("kind", registry.ALL)
def test_an_unknown_name_is_refused_with_the_nearest(kind: str) -> None:
    names = registry.ALL[kind]
    first = next(iter(names))
    with pytest.raises(UnknownNameError) as caught:
        names.require(first + "x", where="here")
    assert caught.value.exit_code == 2
    assert caught.value.where == "here"
    assert repr(first + "x") in caught.value.what
    assert all(name in caught.value.what for name in names)
    assert "did you mean" in (caught.value.hint or "")


@pytest.fixture
def installed_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("mine", "my_package.drafter:MyDrafter", "specbench.drafters"),
        importlib.metadata.EntryPoint("ngram", "my_package.drafter:Other", "specbench.drafters"),
    ]
    monkeypatch.setattr(registry, "_installed", lambda: importlib.metadata.EntryPoints(points))


@pytest.mark.usefixtures("installed_entry_points")
def test_other_packages_add_names_but_replace_none() -> None:
    names = registry.Registry("drafters", {"ngram": registry.Entry("specbench.x:Y", "built in")})
    assert names["mine"].target == "my_package.drafter:MyDrafter"
    assert names["ngram"].target == "specbench.x:Y"
    assert list(names) == ["ngram", "mine"]


@pytest.mark.parametrize("kind", [kind for kind in registry.ALL if kind not in ("devices", "presets")])
def test_contributing_has_a_recipe_for_every_kind(kind: str) -> None:
    recipes = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"`{kind.upper()}`" in recipes
