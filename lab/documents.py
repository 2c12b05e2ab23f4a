"""The lab's copy of the documents: `fleet:site` verbatim, but for what is not true here.

Not true here: `assumed` (the lab is where such values may be used), the state of an older project (`handed_over`; here
there is none), and values that come from what the lab made up (checksums of its mirror, public keys, the fingerprint of
its CA). In a lab that began empty `existing` is not true either. Nothing encrypted is copied, and the working tree is
only read.
"""

import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from infra.config import Fleet
from infra.config.loading import COMMON_KEY, PROJECT_FILE, SITE_KEY, common_value, load, site_value, stack_files
from infra.config.reader import read
from infra.violation import InvariantError
from lab.existing import existing_guests
from lab.made_up import MadeUp, private_file
from lab.place import Place

MIRROR_ADDRESS = "192.0.2.10"
# The Proxmox fakes fetch no URL; what they list as the image has no content that a checksum could be of.
HANDED_OVER = "the lab: no older project ever held this guest"
STAND_IN_IMAGE_SHA256 = hashlib.sha256(b"the lab's image").hexdigest()


def load_or_refuse(project: Path) -> Fleet:
    """The fleet of a folder. Raises InvariantError with every fault of shape."""
    fleet, violations = load(project)
    if fleet is None:
        raise InvariantError(violations)
    return fleet


def copy_documents(project: Path, place: Place, made_up: MadeUp, mirror_sha256: str) -> None:
    """Writes project file, stack files and entry of the program into the lab's work folder."""
    place.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copyfile(project / "__main__.py", place.work / "__main__.py")
    _write(place.work / PROJECT_FILE, _project(project, made_up, place))
    files = stack_files(project)
    for site, path in files.items():
        _write(place.work / path.name, _stack(path, place.work / path.name, site, made_up, place, mirror_sha256))
    for stale in stack_files(place.work).keys() - files.keys():
        (place.work / f"Pulumi.{stale}.yaml").unlink()


def _project(project: Path, made_up: MadeUp, place: Place) -> dict[str, Any]:
    data, _ = read(project / PROJECT_FILE)
    common = copy.deepcopy(common_value(project / PROJECT_FILE))
    common["assumed"] = []
    common["cilium"]["ca_sha256"] = made_up.ca_sha256
    for version, sums in common["k3s_checksums"].items():
        for key, file in (("binary_sha256", "k3s"), ("images_sha256", "k3s-airgap-images-amd64.tar.zst")):
            if sums[key] is None:
                sums[key] = _listed(place.mirror / "SHA256SUMS", f"k3s/{version}/{file}")
    data = copy.deepcopy(data)
    data["config"][COMMON_KEY]["value"] = common
    return data


def _listed(sums: Path, name: str) -> str:
    for line in sums.read_text().splitlines():
        checksum, _, file = line.partition("  ")
        if file == name:
            return checksum
    return STAND_IN_IMAGE_SHA256


def _stack(path: Path, target: Path, site: str, made_up: MadeUp, place: Place, mirror_sha256: str) -> dict[str, Any]:
    document = copy.deepcopy(site_value(path))
    document["assumed"] = []
    for guest in document["guests"].values():
        if place.empty:
            for field in ("existing", "current", "ssh_user", "older_project", "handed_over"):
                guest.pop(field, None)
        elif guest.get("older_project") and not guest.get("handed_over"):
            guest["handed_over"] = HANDED_OVER
    if place.empty:
        document.setdefault("accept", {})["PVE-03"] = "this lab began empty and makes the guests that exist elsewhere"
    document["wireguard"]["public_key"] = made_up.wireguard_public_keys[site]
    for image in (document["proxmox"]["vm_image"], document["proxmox"].get("container_template")):
        if image and image["sha256"] is None:
            image["sha256"] = STAND_IN_IMAGE_SHA256
    # What the engine wrote into the lab's own copy stays: its salt, and what the lab made up.
    kept = yaml.safe_load(target.read_text()) if target.exists() else {}
    ours = {SITE_KEY, "fleet:artifacts", "fleet:charts"}
    config = {key: value for key, value in kept.get("config", {}).items() if key not in ours}
    return {
        **({"encryptionsalt": kept["encryptionsalt"]} if "encryptionsalt" in kept else {}),
        "config": {
            SITE_KEY: document,
            "fleet:artifacts": {"url": f"http://{MIRROR_ADDRESS}", "sha256sums": mirror_sha256},
            "fleet:charts": str(place.mirror / "charts"),
            **config,
        },
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    private_file(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120))


def topology(fleet: Fleet, place: Place, toolchain: Path) -> str:
    """LABDIR/topology.json: hosts, routers and tunnels of the documents, at their production addresses."""
    sites = {
        site_id: {
            "lan": str(site.network.lan_cidr),
            "router": {
                "lan_address": str(site.vyos.lan_address),
                "public_address": str(site.vyos.public_address) if site.vyos.public_address else None,
            },
            "hosts": [{"name": host.name, "address": str(host.address)} for host in site.proxmox.hosts.values()],
            "pve": {
                "endpoint": site.proxmox.endpoint,
                "storages": [
                    {"name": storage.name, "type": storage.type, "content": ",".join(storage.content)}
                    for storage in site.proxmox.storages.values()
                ],
            },
            "existing": []
            if place.empty
            else [guest.model_dump(mode="json") for guest in existing_guests(fleet, site_id)],
        }
        for site_id, site in fleet.sites.items()
    }
    tunnels = [
        {
            "interface": tunnel.interface,
            "ends": {site: f"{address}/{tunnel.cidr.prefixlen}" for site, address in tunnel.ends.items()},
        }
        for tunnel in fleet.common.tunnels
    ]
    mirror = {"address": MIRROR_ADDRESS, "directory": str(place.mirror)}
    return json.dumps({"sites": sites, "tunnels": tunnels, "mirror": mirror, "toolchain": str(toolchain)}, indent=1)
