"""Contract charts, Helm values and custom resources against upstream's schemas, in a folder laid out as catalogues are.

    <DIR>/crds/<group>/<kind>_<version>.json     JSON schema of a custom resource, unknown fields refused
    <DIR>/charts/<chart>.values.keys.txt         one default a line: dotted key, type, value
    <DIR>/charts/<chart>.values.schema.json      the chart's own schema, where it ships one

`pytest --contracts=DIR` runs these tests; without it they are deselected and the run's last lines say what was not
checked. The folder is not part of this repository. Left out: rules that only a live webhook or controller enforces.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.sites import SITES
from tests.test_charts import CHARTS, CRDS, custom_resources, defaults_of, levels, releases, schema_of

OPTION = "--contracts"
_NOT_CHECKED = "contract charts, Helm values and custom resources were not checked against upstream's schemas"

# Keys that upstream accepts but comments out in values.yaml, so that no list of defaults has them.
COMMENTED_OUT = {
    "cilium": {
        "devices",
        "kubeProxyReplacement",
        "loadBalancer.algorithm",
        "loadBalancer.mode",
        "clustermesh.apiserver.tls.auto.schedule",
    }
}

Schema = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION, metavar="DIR", type=Path, help="check charts and custom resources against upstream's schemas"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OPTION) is not None:
        return
    unchecked = [item for item in items if "contracts" in getattr(item, "fixturenames", ())]
    if unchecked:
        config.hook.pytest_deselected(items=unchecked)
        items[:] = [item for item in items if item not in unchecked]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption(OPTION) is None:
        terminalreporter.write_line(f"{OPTION} DIR was not given: {_NOT_CHECKED}.")


@pytest.fixture(scope="module")
def contracts(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.config.getoption(OPTION)
    assert (folder / "crds").is_dir() and (folder / "charts").is_dir(), f"{folder} holds no crds/ and charts/"
    return folder


def defaults(contracts: Path, chart: str) -> dict[str, str]:
    """Upstream's defaults by dotted key, as JSON text or a summary in brackets."""
    lines = (contracts / "charts" / f"{chart}.values.keys.txt").read_text().splitlines()
    fields = [line.split("\t") for line in lines]
    return {key.replace('"', ""): value for key, _, value in fields}


def upstream_values(contracts: Path, chart: str) -> Schema:
    """The chart's own schema; empty where it ships none."""
    path = contracts / "charts" / f"{chart}.values.schema.json"
    schema: Schema = json.loads(path.read_text()) if path.exists() else {}
    return schema


def known_keys(contracts: Path, chart: str) -> set[str]:
    keys = set(defaults(contracts, chart)) | COMMENTED_OUT.get(chart, set())
    keys |= {".".join(path) for path, _ in levels(upstream_values(contracts, chart))}
    return keys | {key[: match.start()] for key in keys for match in re.finditer(r"\.", key)}


def types(schema: Schema) -> set[str]:
    """JSON types that a schema takes; empty when it does not say."""
    if "enum" in schema:
        return {json_type(value) for value in schema["enum"]}
    found = schema.get("type", [])
    named = {found} if isinstance(found, str) else set(found)
    return named or {name for part in schema.get("anyOf", []) for name in types(part)}


def json_type(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def test_every_key_of_our_chart_schemas_is_upstreams_and_of_its_type(contracts: Path) -> None:
    assert CHARTS
    for chart in CHARTS:
        ours = {".".join(path): inner for path, inner in levels(schema_of(chart))}
        assert set(ours) - known_keys(contracts, chart.name) == set()
        theirs = {".".join(path): inner for path, inner in levels(upstream_values(contracts, chart.name))}
        wider = {
            key: (types(inner), types(theirs[key]))
            for key, inner in ours.items()
            if key in theirs and types(theirs[key]) and not types(inner) <= types(theirs[key])
        }
        assert wider == {}


def test_our_chart_schemas_leave_out_nothing_at_a_level_that_they_spell_out(contracts: Path) -> None:
    for chart in CHARTS:
        ours = {".".join(path): inner for path, inner in levels(schema_of(chart))}
        spelt_out = {"", *(key for key, inner in ours.items() if "properties" in inner)}
        upstream = known_keys(contracts, chart.name)
        assert {key for key in upstream if key.rpartition(".")[0] in spelt_out} - set(ours) == set()


def test_our_chart_defaults_are_upstreams(contracts: Path) -> None:
    for chart in CHARTS:
        upstream = defaults(contracts, chart.name)
        ours = {key: value for key, value in leaves(defaults_of(chart)) if not isinstance(value, list)}
        differing = {
            key: (value, upstream.get(key)) for key, value in ours.items() if json.dumps(value) != upstream.get(key)
        }
        assert differing == {}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_our_crds_accept_nothing_that_upstreams_refuse(contracts: Path) -> None:
    assert CRDS
    faults: list[str] = []
    for path in CRDS:
        spec = yaml.safe_load(path.read_text())["spec"]
        kind = spec["names"]["kind"]
        for version in spec["versions"]:
            upstream = crd(contracts, f"{spec['group']}/{version['name']}", kind)
            ours = version["schema"]["openAPIV3Schema"]
            faults += looser(ours["properties"]["spec"], upstream["properties"]["spec"], f"{kind}.spec")
            if set(upstream["required"]) - set(ours["required"]):
                faults.append(f"{kind}: required {ours['required']}, upstream {upstream['required']}")
    assert faults == []


def crd(contracts: Path, api_version: str, kind: str) -> Schema:
    group, _, version = api_version.partition("/")
    schema: Schema = json.loads((contracts / "crds" / group / f"{kind.lower()}_{version}.json").read_text())
    return schema


def looser(ours: Schema, upstream: Schema, path: str) -> Iterator[str]:
    """Where our schema takes what upstream's does not, as far as keywords tell."""
    if types(upstream) and not types(ours) <= types(upstream):
        yield f"{path}: types {types(ours)}, upstream {types(upstream)}"
    if "enum" in upstream and not set(ours.get("enum", [...])) <= set(upstream["enum"]):
        yield f"{path}: enum {ours.get('enum')}, upstream {upstream['enum']}"
    for keyword, sign in {
        "minimum": 1,
        "minItems": 1,
        "minLength": 1,
        "maximum": -1,
        "maxItems": -1,
        "maxLength": -1,
    }.items():
        bound = upstream.get(keyword)
        if bound is not None and (keyword not in ours or sign * ours[keyword] < sign * bound):
            yield f"{path}: {keyword} {ours.get(keyword)}, upstream {bound}"
    if missing := set(upstream.get("required", [])) - set(ours.get("required", [])):
        yield f"{path}: not required, but upstream does: {sorted(missing)}"
    for key, inner in ours.get("properties", {}).items():
        theirs = upstream.get("properties", {}).get(key)
        if theirs is None:
            yield f"{path}.{key}: unknown upstream"
        else:
            yield from looser(inner, theirs, f"{path}.{key}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(ours.get(keyword), dict) and isinstance(upstream.get(keyword), dict):
            yield from looser(ours[keyword], upstream[keyword], f"{path}[]")


@pytest.mark.parametrize("site_id", SITES)
def test_every_helm_value_of_a_site_is_upstreams(contracts: Path, site_id: str) -> None:
    assert releases(site_id)
    for release in releases(site_id):
        chart, values = release["name"], release["values"]
        known = known_keys(contracts, chart)
        free = {key for key, value in defaults(contracts, chart).items() if value == "{}"}
        unknown = [
            key for key, _ in leaves(values) if key not in known and not any(key.startswith(f"{f}.") for f in free)
        ]
        assert unknown == []
        schema = upstream_values(contracts, chart)
        faults = jsonschema.Draft7Validator(schema).iter_errors(values)
        assert [
            f"{'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults if fault.validator != "required"
        ] == []


@pytest.mark.parametrize("site_id", SITES)
def test_every_custom_resource_of_a_site_fits_upstreams_schema(contracts: Path, site_id: str) -> None:
    assert custom_resources(site_id)
    for inputs in custom_resources(site_id):
        schema = crd(contracts, inputs["apiVersion"], inputs["kind"])
        faults = jsonschema.Draft7Validator(schema).iter_errors(inputs)
        assert [f"{inputs['kind']} {'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults] == []
