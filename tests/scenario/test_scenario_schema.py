"""The JSON schema for editors, and the promises of the typed one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from specbench.scenario.diagnosis import all_keys, known_keys, section_model
from specbench.scenario.schema import Scenario, json_schema
from specbench.scenario.yaml12 import to_plain


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for value in schema.values():
            yield from _objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _objects(value)


def test_every_key_has_a_description_and_unknown_keys_are_refused() -> None:
    objects = list(_objects(json_schema()))
    assert len(objects) == 13
    for item in objects:
        assert item["additionalProperties"] is False
        for name, key in item["properties"].items():
            assert key.get("description"), name


def test_the_schema_has_the_keys_of_the_models() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Scenario.model_fields)
    assert schema["$schema"].startswith("https://json-schema.org/")
    workload = schema["$defs"]["Workload"]["anyOf"][1]["properties"]
    assert {"kind", "isl", "concurrency"} <= set(workload)


@pytest.mark.parametrize(("section", "key"), [("model", "source"), ("drafter", "name"), ("workload", "kind")])
def test_a_shorthand_may_be_text(section: str, key: str) -> None:
    options = json_schema()["$defs"][section.capitalize()]["anyOf"]
    assert options[0]["type"] == "string"
    assert key in options[0]["description"]


def test_quantities_are_text_with_a_pattern() -> None:
    options = json_schema()["$defs"]["Engine"]["properties"]["kv_cache"]["anyOf"]
    assert options[0]["type"] == "string"
    assert "512MiB" in options[0]["examples"]


def test_scenarios_cannot_be_changed() -> None:
    scenario = Scenario.model_validate({"model": "tiny"})
    with pytest.raises(Exception, match="frozen"):
        scenario.model.source = "other"  # type: ignore[misc]


def test_dotted_keys_reach_every_field() -> None:
    keys = set(all_keys())
    assert {"name", "workload.isl", "engine.kv_cache", "optimizations", "measure.timeout"} <= keys
    sections = [name for name in Scenario.model_fields if section_model(name) is not None]
    fields = sum(len(section_model(name).model_fields) for name in sections)  # type: ignore[union-attr]
    inner = [("measure", "windows"), ("drafter", "tree")]  # sections in a section
    below = sum(len(known_keys(path)) - 1 for path in inner)
    assert len(keys) == fields + below + len(Scenario.model_fields) - len(sections)


def test_the_default_scenario_is_what_an_empty_one_means() -> None:
    empty = Scenario.model_validate({})
    assert isinstance(empty, BaseModel)
    assert Scenario.model_validate(to_plain(empty.model_dump())) == empty


def test_keys_that_json_made_text_are_whole_numbers_again() -> None:
    table = Scenario.model_validate({"drafter": {"runtime_draft_len": {"4": 2, 8: 1}}}).drafter.runtime_draft_len
    assert table == {4: 2, 8: 1}
    with pytest.raises(ValueError, match="runtime_draft_len"):
        Scenario.model_validate({"drafter": {"runtime_draft_len": {"four": 2}}})


def test_a_variable_may_be_written_as_a_number() -> None:
    process = Scenario.model_validate({"process": {"env": {"OMP_NUM_THREADS": 4, "A": "b"}}}).process
    assert process is not None
    assert process.env == {"OMP_NUM_THREADS": "4", "A": "b"}
    with pytest.raises(ValueError, match="valid string"):
        Scenario.model_validate({"process": {"env": {"A": True}}})


def test_the_step_after_a_switch_is_always_guarded() -> None:
    """The first one fills buffers anew in one arm alone: timing it would be in that arm's figure."""
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Scenario.model_validate({"measure": {"guard_steps": 0}})
    assert Scenario.model_validate({"measure": {"guard_steps": 1}}).measure.guard_steps == 1
