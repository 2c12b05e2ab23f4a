"""The documents that tests declare: the shipped ones, an invented third site, and changed copies of both.

Most tests are about what the program makes, so the guests that exist already are new to them; `adopted` has the
documents as they are.

A plan is declared once per fleet and site and shared: its record is plain data that no test changes.
"""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cli.plan import Declared, plan
from cli.stand_in_inputs import placeholders
from infra.certificates import Pair, fingerprint
from infra.config import Fleet
from infra.config.loading import PROJECT_FILE, common_value, site_value, stack_files
from infra.names import MESH_KEYS
from operations.authority import new_authority, new_leaves
from tests.rules.documents import fleet_of as parsed

ROOT = Path(__file__).parents[2]
THIRD = "norte"
SITES = ("franca", "sp", THIRD)
Documents = dict[str, dict[str, Any]]  # by site id, and `common`
Record = dict[tuple[str, str], Declared]

TUNNELS = (
    {"interface": "wg1", "cidr": "10.255.1.0/30", "ends": {"franca": "10.255.1.1", THIRD: "10.255.1.2"}},
    {"interface": "wg2", "cidr": "10.255.2.0/30", "ends": {"sp": "10.255.2.1", THIRD: "10.255.2.2"}},
)
CHECKSUMS = {"binary_sha256": "c" * 64, "images_sha256": "d" * 64}

# What no document uses yet: a second disk, further tags, a known host key, an agent, labels and kubelet settings.
FIRST_NODE = {
    "disks": [{"storage": "fast", "size_gib": 64}, {"storage": "fast", "size_gib": 444}],
    "tags": ["zone-b", "audited"],
    "ssh_host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAnortenortenortenortenortenortenortenorten",
    "node_labels": {"rack": "r1"},
}
AGENT = {
    "kind": "vm",
    "host": "marble",
    "vmid": 9004,
    "address": "172.22.64.24",
    "cores": 2,
    "memory_mib": 4096,
    "disks": [{"storage": "fast", "size_gib": 22}],
    "cpu_type": "x86-64-v3",
    "start_order": 7,
    "stateful": False,
    "backup": {"pbs": True},
    "node_labels": {"pool": "spare", "rack": "r9"},
}
MAIN = {
    "k3s_version": "v1.32.11+k3s3",
    "agents": ["north-d"],
    "disable": ["traefik", "servicelb", "metrics-server", "local-storage"],
    "node_labels": {"zone": "north", "rack": "none"},
    "kubelet_args": ["max-pods=60"],
    "logs": {"max_size_mib": 7, "max_files": 3},
}


@cache
def _documents() -> Documents:
    common = common_value(ROOT / PROJECT_FILE)
    common["tunnels"] += TUNNELS
    common["k3s_checksums"]["v1.32.11+k3s3"] = CHECKSUMS
    common["operators"] = {"zoe": "ssh-ed25519 AAAAzoe", "ana": "ssh-ed25519 AAAAana"}
    third = site_value(Path(__file__).with_name(f"Pulumi.{THIRD}.yaml"))
    third["guests"]["north-a"] |= FIRST_NODE
    third["guests"]["north-d"] = AGENT
    third["clusters"]["north"] |= MAIN
    shipped = {site_id: site_value(path) for site_id, path in stack_files(ROOT).items()}
    return {"common": common, THIRD: third} | shipped


def fleet_of(documents: Documents) -> Fleet:
    """Models of plain documents, which must be sound."""
    fleet, faults = parsed(documents)
    assert fleet is not None, faults
    return fleet


@cache
def three_sites() -> Fleet:
    """The shipped sites and the invented one, on empty hosts."""
    return fleet_of(all_new(plain_documents()))


def changed(edit: Callable[[Documents], object]) -> Fleet:
    """The three sites on empty hosts, after an edit of their documents."""
    documents = all_new(plain_documents())
    edit(documents)
    return fleet_of(documents)


def adopted(edit: Callable[[Documents], object] = lambda _: None) -> Fleet:
    """The three sites with the guests that exist already, after an edit of their documents."""
    documents = plain_documents()
    edit(documents)
    return fleet_of(documents)


def all_new(documents: Documents) -> Documents:
    """The same documents where no guest exists yet."""
    for site_id in set(documents) - {"common"}:
        gone = set()
        for name, guest in documents[site_id]["guests"].items():
            if guest.pop("existing", False):
                documents[site_id].setdefault("accept", {})["PVE-03"] = "tests begin with empty hosts"
            for key in ("current", "ssh_user", "older_project", "handed_over"):
                if guest.pop(key, None) is not None:
                    gone.add(f"guests.{name}.{key}")
        if "assumed" in documents[site_id]:
            documents[site_id]["assumed"] = [path for path in documents[site_id]["assumed"] if path not in gone]
    return documents


def plain_documents() -> Documents:
    """The three sites as plain data, for a test to change."""
    return copy.deepcopy(_documents())


def confirmed(documents: Documents) -> Documents:
    """The same documents once people have settled what is open: nothing assumed, nothing empty, every guest new."""
    for value in documents.values():
        value.pop("assumed", None)
    documents["common"]["cilium"]["ca_sha256"] = fingerprint(authority()[0])
    documents["common"]["k3s_checksums"]["v1.32.13+k3s1"] = dict(CHECKSUMS)
    for site_id in set(documents) - {"common"}:
        site = documents[site_id]
        site["wireguard"]["public_key"] = (
            site["wireguard"]["public_key"] or "c29tZS1wdWJsaWMta2V5LW9mLTMyLWJ5dGVzLTAwMDA="
        )
        for image in ("vm_image", "container_template"):
            if site["proxmox"].get(image):
                site["proxmox"][image]["sha256"] = "f" * 64
    return all_new(documents)


@cache
def authority() -> Pair:
    """The CA of the fleet in these tests."""
    return new_authority()


@cache
def certified(cluster: str) -> dict[str, str]:
    """Certificates of a stack as its configuration holds them: the CA, and those of its half of the mesh."""
    ca = dict(zip(("fleet:ciliumCaCert", "fleet:ciliumCaKey"), authority(), strict=True))
    leaves = new_leaves(authority(), cluster)
    return ca | {
        f"fleet:{key}": text for role in MESH_KEYS for key, text in zip(MESH_KEYS[role], leaves[role], strict=True)
    }


def plan_of(fleet: Fleet, site_id: str) -> Record:
    """What the program declares for a site of any fleet, with placeholders for secrets."""
    return plan(fleet, site_id, placeholders)


@cache
def declared(site_id: str) -> Record:
    """What the program declares for a site of the three."""
    return plan_of(three_sites(), site_id)


def of_type(record: Record, suffix: str) -> dict[str, Declared]:
    """Resources by name whose type token ends so."""
    return {name: resource for (kind, name), resource in record.items() if kind.endswith(suffix)}
