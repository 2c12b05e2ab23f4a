"""JSON Schema of a stack file, so that editors complete and check it while it is typed."""

import json
from typing import Any

from infra.config.fleet import Common, Site
from infra.config.loading import COMMON_KEY, SITE_KEY


def stack_file_schema() -> dict[str, Any]:
    """Schema of Pulumi.<site>.yaml; other keys below `config` are plain or encrypted values."""
    return _schema(Site.model_json_schema(), SITE_KEY, wrap=False)


def project_file_schema() -> dict[str, Any]:
    """Schema of Pulumi.yaml."""
    return _schema(Common.model_json_schema(), COMMON_KEY, wrap=True)


def _schema(model: dict[str, Any], key: str, *, wrap: bool) -> dict[str, Any]:
    definitions = model.pop("$defs", {})
    value = {"type": "object", "properties": {"value": model}, "required": ["value"]} if wrap else model
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Pulumi.yaml" if wrap else "Pulumi.<site>.yaml",
        "type": "object",
        "properties": {"config": {"type": "object", "properties": {key: value}, "required": [key]}},
        "required": ["config"],
        "$defs": definitions,
    }


def text(schema: dict[str, Any]) -> str:
    """The schema as it stands in its file."""
    return json.dumps(schema, indent=2) + "\n"
