"""One mapping of a scenario file: nothing in it is coerced, and nothing unknown is let through."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Section(BaseModel):
    """One mapping of a scenario.

    ``shorthand`` names the key that a bare text stands for (``model: tiny``). ``kept`` are the keys that stay when an
    override puts a bare text over the section, since they mean the same whatever the text chooses.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    shorthand: ClassVar[str | None] = None
    kept: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {cls.shorthand: value} if isinstance(value, str) and cls.shorthand else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        if cls.shorthand is None:
            return schema
        text = {"type": "string", "description": f"short for {{{cls.shorthand}: ...}}"}
        return {"anyOf": [text, schema]}
