"""What a person does with the lab: up, preview, status, kubectl, ssh, down."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from infra.config import Fleet
from infra.rules import judge
from infra.violation import InvariantError
from lab import PROJECT, LabError, control, guarded, peering, toolchain
from lab.documents import copy_documents, load_or_refuse, topology
from lab.engine import Engine, alone, telling
from lab.made_up import MadeUp, make, private_file
from lab.mirror import build as build_mirror
from lab.place import Place, here
from lab.providers import install as install_plugins
from operations.engine import complaints
from operations.faults import remedies

KUBECTL_TIMEOUT_S = 60
READY_TIMEOUT_S = 90


def up(
    console: Console,
    sites: list[str] | None,
    *,
    empty: bool = False,
    accept: Mapping[str, str] | None = None,
    guard: bool = True,
) -> int:
    """Brings sites up, all of them by default; repeatable. A lab that this call started and could not finish ends.

    The existing guests of the documents are there from the start; in an `empty` lab the program makes them too.
    """
    place, fleet = here(), _judged()
    chosen = _chosen(fleet, sites)
    binaries = _toolchain(console)
    with alone(place):
        if not place.state.exists():
            place.begin(empty)
        elif empty and not place.empty:
            raise LabError("this lab began with the existing guests; end it first: ./fleet lab down")
        return _up(console, place, fleet, chosen, binaries, accept, guard=guard)


def refresh(place: Place, fleet: Fleet, engine: Engine) -> None:
    """Brings the lab's copies to the documents, and their stacks to the secrets that they need, as `up` does."""
    with alone(place):
        made_up = _prepare(place, fleet, engine.toolchain)
        for site in fleet.sites:
            engine.prepare(site, made_up.config[site])


def _up(
    console: Console,
    place: Place,
    fleet: Fleet,
    chosen: list[str],
    binaries: Path,
    accept: Mapping[str, str] | None,
    *,
    guard: bool,
) -> int:
    started = False
    try:
        made_up = _prepare(place, fleet, binaries)
        if not control.running(place.root):
            started = True
            began = time.monotonic()
            control.start(place.root)
            _collect_authorities(place, fleet)
            console.print(f"namespaces, routers, Proxmox fakes: {time.monotonic() - began:.1f} s", highlight=False)
        if not place.empty:
            began = time.monotonic()
            control.request(place.root, op="install-existing")
            if started:
                console.print(f"existing guests: {time.monotonic() - began:.1f} s", highlight=False)
        engine = Engine(place, binaries)
        for site in chosen:
            engine.prepare(site, made_up.config[site])
            if code := _update(engine, "up", site, place, console, accept, guard=guard):
                return code
            _write_kubeconfigs(place, engine, site)
    except KeyboardInterrupt:
        if started:
            console.print("interrupted: the lab is taken down", highlight=False)
            control.stop(place.root)
        raise
    _table(console, place, _settled(place, fleet, engine))
    return 0


def preview(console: Console, sites: list[str] | None) -> int:
    """Previews sites against the running lab."""
    place, fleet = here(), _judged()
    if not control.running(place.root):
        raise LabError("no lab runs; start it with: ./fleet lab up")
    binaries = _toolchain(console)
    with alone(place):
        made_up = _prepare(place, fleet, binaries)
        engine = Engine(place, binaries)
        for site in _chosen(fleet, sites):
            engine.prepare(site, made_up.config[site])
            if code := _update(engine, "preview", site, place, console):
                return code
    return 0


def status(json_output: bool, console: Console) -> int:
    """What runs: nodes, releases, addresses, objects of BGP and the mesh."""
    place, fleet = here(), load_or_refuse(PROJECT)
    if not control.running(place.root):
        if json_output:
            print(json.dumps({"running": False}))
        else:
            console.print("no lab runs; start it with: ./fleet lab up", highlight=False)
        return 1
    engine = Engine(place, toolchain.ensure(lambda _: None))
    found = collect(place, fleet, engine, with_peering=True)
    if json_output:
        print(json.dumps({"running": True, **found}, indent=2))
    else:
        _table(console, place, found)
    return 0


def kubectl(cluster: str, args: list[str]) -> int:
    """Runs kubectl against a cluster of the lab."""
    place = here()
    if not control.running(place.root):
        raise LabError("no lab runs; start it with: ./fleet lab up")
    file = place.kubeconfigs / f"{cluster}.yaml"
    if not file.exists():
        known = sorted(path.stem for path in place.kubeconfigs.glob("*.yaml"))
        raise LabError(f"no cluster {cluster} in the lab; expected one of: {', '.join(known) or 'none yet'}")
    binaries = toolchain.ensure(lambda _: None)
    command = control.inside(place.root, [str(binaries / "kubectl"), "--kubeconfig", str(file), *args])
    return subprocess.run(command, check=False).returncode


def ssh(node: str, args: list[str]) -> int:
    """Logs in to a node of the lab with the program's own key, or runs a command there."""
    place, fleet = here(), load_or_refuse(PROJECT)
    found = [(site, guest) for path, site, guest in fleet.guests() if guest.name == node]
    if not found:
        raise LabError(f"no guest {node}; expected one of: {', '.join(guest.name for _, _, guest in fleet.guests())}")
    site_id = next(site_id for site_id, site in fleet.sites.items() if node in site.guests)
    known = json.loads(place.secrets.read_text())[site_id]
    guest = found[0][1]
    there = control.request(place.root, op="status")["nodes"]
    user = next((one["user"] for one in there if one["name"] == node and one["site"] == site_id), "root")
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "key")
        private_file(key, known["ssh_private_key"])
        options = ["UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "LogLevel=ERROR", "IdentitiesOnly=yes"]
        command = ["ssh", "-i", str(key), *(part for option in options for part in ("-o", option))]
        command += [f"{user}@{guest.address}", *args]
        return subprocess.run(control.inside(place.root, command), check=False).returncode


def fault(console: Console, site: str, kind: str, subject: str, off: bool) -> int:
    """Switches a fault of a site's Proxmox on, or off again."""
    control.request(here().root, op="fault", site=site, kind=kind, subject=subject, on=not off)
    console.print(f"{site}: Proxmox fault {kind} is {'off' if off else 'on'}", highlight=False)
    return 0


def down(console: Console) -> int:
    """Ends the lab and removes its folder."""
    place = here()
    control.stop(place.root)
    if place.root.exists():
        _remove(place.root)
    console.print("the lab is down; nothing is left", highlight=False)
    return 0


def _settled(place: Place, fleet: Fleet, engine: Engine) -> dict[str, Any]:
    """The state once every node is Ready: with Cilium that is some seconds after its release; bounded."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        found = collect(place, fleet, engine)
        waiting = any(len(cluster["ready"]) < cluster["nodes"] for cluster in found["clusters"].values())
        if not waiting or time.monotonic() > deadline:
            return found
        time.sleep(2)


def collect(place: Place, fleet: Fleet, engine: Engine, *, with_peering: bool = False) -> dict[str, Any]:
    """The state of every cluster of the lab that has been brought up; its BGP and mesh where somebody asks."""
    nodes = control.request(place.root, op="status")["nodes"]
    clusters = {}
    for _, site, cluster in fleet.clusters():
        site_id = next(key for key, value in fleet.sites.items() if value is site)
        file = place.kubeconfigs / f"{cluster.name}.yaml"
        if not file.exists():
            continue
        items = _get(place, engine, file, "nodes")
        ready = [node["metadata"]["name"] for node in items if _condition(node, "Ready") == "True"]
        releases = _get(place, engine, file, "secrets", "-A", "-l", "owner=helm")
        announced = any(secret["metadata"]["labels"]["name"] == "cilium" for secret in releases)
        clusters[cluster.name] = {
            "site": site_id,
            "api": yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"],
            "nodes": len(items),
            "ready": ready,
            "releases": sorted(
                f"{secret['metadata']['labels']['name']} {secret['metadata']['labels']['status']}"
                for secret in releases
                if secret["metadata"]["labels"]["status"] != "superseded"
            ),
            "vips": {key: str(vip) for key, vip in site.lb.vips if vip} if announced else {},
            "lb_pool": str(site.lb.pool) if announced else None,
            "kubeconfig": str(file),
        }
        if with_peering:
            asked = partial(_get, place, engine, file)
            clusters[cluster.name]["peering"] = peering.found(asked) if cluster.cni == "cilium" else {}
    return {"guests": nodes, "clusters": clusters, "stand_ins": list(STAND_INS)}


STAND_INS = (
    "proxmoxve, command and random providers (real API calls, real SSH)",
    "Proxmox VE (fakepve)",
    "k3s (real etcd, kube-apiserver, scheduler and controller manager; nodes and pods by kwok)",
    "charts (own contract charts under the real names)",
    "routers (plain forwarding: no packet goes through Cilium or VyOS)",
)


def _judged() -> Fleet:
    fleet = load_or_refuse(PROJECT)
    verdict = judge(fleet)
    if verdict.stops:
        raise InvariantError(verdict.stops)
    return fleet


def _chosen(fleet: Fleet, sites: list[str] | None) -> list[str]:
    unknown = [site for site in sites or () if site not in fleet.sites]
    if unknown:
        raise LabError(f"no site {', '.join(unknown)}; expected one of: {', '.join(fleet.sites)}")
    return list(sites or fleet.sites)


def _toolchain(console: Console) -> Path:
    return toolchain.ensure(lambda line: console.print(line, highlight=False))


def _prepare(place: Place, fleet: Fleet, binaries: Path) -> MadeUp:
    place.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.root.chmod(0o700)
    members = {site_id: site.mesh_member for site_id, site in fleet.sites.items()}
    made_up = make(place, {site_id: cluster.name if cluster else None for site_id, cluster in members.items()})
    place.mirror.mkdir(parents=True, exist_ok=True)
    mirror_sha256 = build_mirror(place.mirror, PROJECT / "lab/standins/k3s", Path(sys.executable))
    copy_documents(PROJECT, place, made_up, mirror_sha256)
    install_plugins(place.plugins, Path(sys.executable))
    private_file(place.root / "topology.json", topology(fleet, place, binaries))
    return made_up


def _collect_authorities(place: Place, fleet: Fleet) -> None:
    """The Proxmox fakes sign for themselves; the engine trusts these files, as it would the site's authority."""
    certificates = [
        path.read_text() for site in fleet.sites for path in sorted((place.root / "pve" / site).glob("*.crt"))
    ]
    private_file(place.authorities, "\n".join(certificates))


def _update(
    engine: Engine,
    verb: str,
    site: str,
    place: Place,
    console: Console,
    accept: Mapping[str, str] | None = None,
    *,
    guard: bool = True,
) -> int:
    began = time.monotonic()
    if verb == "up":
        engine.mend(site)
    else:
        engine.unlock(site)
    given: dict[str, str] | None = {}
    if guard:
        given = guarded.environment(
            engine, place, site, accept, lambda line: console.print(f"  {site}: {line}", highlight=False, markup=False)
        )
    if given is None:
        console.print(f"{site}: the guard stopped it; nothing was changed", highlight=False)
        return 1
    tail: list[str] = []

    def show(line: str) -> None:
        tail.append(line)
        if told := telling(line):
            console.print(f"  {site}: {told}", highlight=False)

    console.print(f"pulumi {verb} -s {site}", highlight=False, style="bold")
    code = engine.run(verb, site, show, environment=given)
    if code:
        console.print("\n".join(complaints(tail, NOISE)), highlight=False, markup=False)
        for remedy in remedies(tail):
            console.print(f"what to do: {remedy}", highlight=False, markup=False)
        console.print(
            f"{site}: pulumi {verb} failed; the whole log: {place.logs}/pulumi-{verb}-{site}.log", highlight=False
        )
        return code
    summary = _summary(tail)
    console.print(f"  {site}: {summary} in {time.monotonic() - began:.0f} s", highlight=False)
    return 0


NOISE = (
    ": using pulumi-",
    "expected to have version",
    "info: accepted:",
    "Resource monitor has terminated",
    "error: update failed",
)


def _summary(lines: list[str]) -> str:
    start = next((i for i, line in enumerate(lines) if line.startswith("Resources:")), None)
    if start is None:
        return "done"
    return ", ".join(line.strip() for line in lines[start + 1 : start + 6] if line.startswith("    ") and line.strip())


def _write_kubeconfigs(place: Place, engine: Engine, site: str) -> None:
    for name, value in engine.outputs(site).items():
        if isinstance(value, dict) and "kubeconfig" in value:
            private_file(place.kubeconfigs / f"{name}.yaml", value["kubeconfig"])


def _get(place: Place, engine: Engine, kubeconfig: Path, *what: str) -> list[dict[str, Any]]:
    command = ["kubectl", "--kubeconfig", str(kubeconfig), "get", *what, "-o", "json", "--request-timeout=20s"]
    done = subprocess.run(
        control.inside(place.root, command),
        env=engine.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=KUBECTL_TIMEOUT_S,
    )
    if done.returncode:
        return []
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


def _condition(node: dict[str, Any], kind: str) -> str:
    return next((c["status"] for c in node["status"].get("conditions", []) if c["type"] == kind), "Unknown")


def _table(console: Console, place: Place, found: dict[str, Any]) -> None:
    table = Table(title="The lab", title_justify="left", expand=False)
    peered = any("peering" in cluster for cluster in found["clusters"].values())
    for column in ("site", "cluster", "nodes ready", "releases", "addresses", *(["BGP and mesh"] if peered else [])):
        table.add_column(column, overflow="fold")
    for name, cluster in found["clusters"].items():
        vips = "\n".join([f"API {cluster['api']}", *(f"{key} {vip}" for key, vip in cluster["vips"].items())])
        table.add_row(
            cluster["site"],
            name,
            f"{len(cluster['ready'])}/{cluster['nodes']}",
            "\n".join(cluster["releases"]) or "-",
            vips,
            *([peering.lines(cluster["peering"])] if peered else []),
        )
    console.print(table)
    console.print(f"kubeconfigs: {place.kubeconfigs} (or: ./fleet lab kubectl CLUSTER -- get nodes)", highlight=False)
    console.print("stand-ins here: " + "; ".join(found["stand_ins"]), highlight=False)


def _remove(folder: Path) -> None:
    """Removes the lab's folder, whose nodes may hold files that only root of their namespace may touch."""
    flags = [] if os.geteuid() == 0 else ["-U", "-r"]
    subprocess.run(["unshare", *flags, "rm", "-rf", "--", str(folder)], check=True, timeout=120)
