"""The contract charts refuse what the real ones refuse, and the mirror packs them to the same bytes each time.

Left out: rendering, which needs Helm; the lab's tests install them through the real provider. Whether their keys and
fields are upstream's is `test_contracts`.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lab import mirror
from tests.sites import SITES, Documents, Record, changed, declared, of_type, plan_of

CHARTS = sorted(path.parent for path in mirror.CHARTS.glob("*/Chart.yaml"))
CRDS = sorted(mirror.CHARTS.glob("*/crds/*.yaml"))
WRONG: dict[str, Any] = {
    "string": 7,
    "integer": "7",
    "number": "7",
    "boolean": "yes",
    "array": 7,
    "object": 7,
    "null": "x",
}

# What the program does not set yet, or sets only for some sites.
MESH = """
devices: [eth0, wg0]
MTU: 1420
routingMode: native
ipv4NativeRoutingCIDR: 10.40.0.0/14
hubble: {metrics: {enabled: [drop, flow]}}
clustermesh:
  useAPIServer: true
  config: {enabled: true, clusters: [{name: sp, ips: [10.1.0.5], port: 2379}]}
  apiserver:
    service: {type: LoadBalancer, annotations: {lbipam.cilium.io/ips: 10.0.0.5}}
    tls: {authMode: cluster}
"""


def schema_of(chart: Path) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((chart / "values.schema.json").read_text())
    return schema


def refused(chart: Path, values: dict[str, Any]) -> bool:
    """Judges values as Helm does: merged over the chart's defaults."""
    return not jsonschema.Draft7Validator(schema_of(chart)).is_valid(merged(defaults_of(chart), values))


def defaults_of(chart: Path) -> dict[str, Any]:
    defaults: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    return defaults


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def levels(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every key that a schema spells out, with its own schema."""
    for key, inner in schema.get("properties", {}).items():
        yield (*path, key), inner
        yield from levels(inner, (*path, key))


def _further(documents: Documents) -> None:
    """What no site of the documents has: MetalLB, a password, a node with a difference."""
    for site_id in SITES:
        site = documents[site_id]
        site["lb"]["mode"] = "metallb"
        site["bgp"]["authenticated"] = True
        cluster = next(one for one in site["clusters"].values() if one["cni"] == "cilium")
        site["bgp"]["node_overrides"] = {cluster["servers"][0]: {"router_id": "192.0.2.1", "local_port": 1790}}


def records(site_id: str) -> list[Record]:
    return [declared(site_id), plan_of(changed(_further), site_id)]


def releases(site_id: str) -> list[dict[str, Any]]:
    return [made.inputs for record in records(site_id) for made in of_type(record, "helm.sh/v3:Release").values()]


def custom_resources(site_id: str) -> list[dict[str, Any]]:
    found = [
        made.inputs
        for record in records(site_id)
        for (kind, _), made in record.items()
        if kind.startswith("kubernetes:")
    ]
    return [inputs for inputs in found if "." in inputs.get("apiVersion", "").partition("/")[0]]


def crd_schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Our schemas by apiVersion and kind, strict as the API server is about unknown fields when asked to be."""
    schemas = {}
    for path in CRDS:
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            schemas[key] = strict(version["schema"]["openAPIV3Schema"])
    return schemas


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    result = dict(schema)
    if "properties" in schema:
        result["properties"] = {key: strict(inner) for key, inner in schema["properties"].items()}
        result.setdefault("additionalProperties", False)
    if "items" in schema:
        result["items"] = strict(schema["items"])
    return result


@pytest.mark.parametrize("site_id", SITES)
def test_every_release_of_a_site_finds_its_chart_and_the_chart_its_values(site_id: str) -> None:
    assert releases(site_id)
    for release in releases(site_id):
        chart = mirror.CHARTS / release["name"]
        assert yaml.safe_load((chart / "Chart.yaml").read_text())["version"] == release["version"]
        faults = jsonschema.Draft7Validator(schema_of(chart)).iter_errors(merged(defaults_of(chart), release["values"]))
        assert [fault.message for fault in faults] == []


@pytest.mark.parametrize("site_id", SITES)
def test_every_custom_resource_of_a_site_fits_its_crd(site_id: str) -> None:
    schemas = crd_schemas()
    assert custom_resources(site_id)
    for inputs in custom_resources(site_id):
        schema = schemas[inputs["apiVersion"], inputs["kind"]] | {"additionalProperties": False}
        assert [fault.message for fault in jsonschema.Draft7Validator(schema).iter_errors({**inputs})] == []


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_schema_is_one_and_takes_the_charts_own_defaults(chart: Path) -> None:
    jsonschema.Draft7Validator.check_schema(schema_of(chart))
    assert not refused(chart, {})


def test_cilium_takes_the_values_of_a_mesh_member() -> None:
    assert not refused(mirror.CHARTS / "cilium", yaml.safe_load(MESH))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_an_unknown_key_is_refused_at_every_level_that_is_spelt_out(chart: Path) -> None:
    spelt_out = [(), *(path for path, inner in levels(schema_of(chart)) if "properties" in inner)]
    accepted = [path for path in spelt_out if not refused(chart, nested((*path, "noSuchKey"), True))]
    assert accepted == []


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_value_of_a_wrong_type_is_refused_for_every_key(chart: Path) -> None:
    accepted = []
    for path, inner in levels(schema_of(chart)):
        types = inner.get("type", [])
        known = [types] if isinstance(types, str) else types
        wrong = next((WRONG[name] for name in WRONG if name not in known and WRONG[name] not in allowed(known)), ...)
        value = object() if "enum" in inner else wrong
        if (known or "enum" in inner) and value is not ... and not refused(chart, nested(path, value)):
            accepted.append(path)
    assert accepted == []


def allowed(known: list[str]) -> list[Any]:
    """The values of WRONG that one of these types would take after all."""
    validator = jsonschema.Draft7Validator({"type": known} if known else {})
    return [value for value in WRONG.values() if validator.is_valid(value)]


@pytest.mark.parametrize(
    "values",
    [
        "cluster: {name: Franca}",
        "cluster: {id: 512}",
        "kubeProxyReplacement: strict",
        "routingMode: vxlan",
        "clustermesh: {config: {clusters: {sp: {ips: [10.1.0.5]}}}}",
        "clustermesh: {config: {clusters: [{ips: [10.1.0.5]}]}}",
        "clustermesh: {config: {clusters: [{name: sp, ip: 10.1.0.5}]}}",
        "clustermesh: {apiserver: {tls: {authMode: mutual}}}",
        "operator: {replicas: '1'}",
    ],
)
def test_cilium_refuses_what_the_real_chart_or_its_agents_would(values: str) -> None:
    assert refused(mirror.CHARTS / "cilium", yaml.safe_load(values))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_templates_read_only_values_that_the_schema_knows(chart: Path) -> None:
    known = {".".join(path) for path, _ in levels(schema_of(chart))}
    text = "".join(path.read_text() for path in (chart / "templates").iterdir())
    read = {match.rstrip(".") for match in re.findall(r"\.Values\.([A-Za-z0-9.]+)", text)}
    assert read - known == set()


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.stem)
def test_a_crd_prunes_nothing_silently(path: Path) -> None:
    crd = yaml.safe_load(path.read_text())
    names, group = crd["spec"]["names"], crd["spec"]["group"]
    assert crd["metadata"]["name"] == f"{names['plural']}.{group}"
    assert path.stem == names["kind"].lower()
    assert [version["storage"] for version in crd["spec"]["versions"]].count(True) == 1
    for version in crd["spec"]["versions"]:
        assert not list(open_objects(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))


def open_objects(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Objects whose fields the API server would not know, hence drop or keep unread."""
    if schema.get("type") == "object" and not schema.get("properties") and "additionalProperties" not in schema:
        yield path
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield path
    for key, inner in schema.get("properties", {}).items():
        yield from open_objects(inner, f"{path}.{key}")
    if "items" in schema:
        yield from open_objects(schema["items"], f"{path}[]")


def test_the_mirror_lists_every_file_and_is_the_same_each_time(tmp_path: Path) -> None:
    k3s = tmp_path / "stand-in"
    k3s.write_text("#!/bin/sh\n")
    digests = [mirror.build(tmp_path / name, k3s, Path("/usr/bin/python3")) for name in ("one", "two", "two")]
    assert len(set(digests)) == 1
    directory = tmp_path / "one"
    lines = [line.split("  ") for line in (directory / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    found = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    found.pop("SHA256SUMS")
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == listed
    assert any(re.fullmatch(r"charts/cilium-[\d.]+\.tgz", name) for name in listed)
    assert any(re.fullmatch(r"k3s/v[\d.]+\+k3s\d/k3s-airgap-images-amd64\.tar\.zst", name) for name in listed)
