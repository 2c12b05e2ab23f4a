"""Packaged components as plain objects under their real names, and files of server/manifests applied as K3s does."""

import asyncio
import hashlib
from pathlib import Path

import yaml

from . import children, log
from .children import binary
from .critical import published
from .kubeapi import Json
from .paths import Paths, write
from .settings import Settings

PACKAGED = ("coredns", "local-storage", "metrics-server", "traefik", "runtimes")
_RUNTIMES = ("nvidia", "nvidia-experimental", "nvidia-cdi", "crun")
_CRDS = (
    ("k3s.cattle.io", "Addon", "addons", "Namespaced"),
    ("k3s.cattle.io", "ETCDSnapshotFile", "etcdsnapshotfiles", "Cluster"),
    ("helm.cattle.io", "HelmChart", "helmcharts", "Namespaced"),
    ("helm.cattle.io", "HelmChartConfig", "helmchartconfigs", "Namespaced"),
)
_PERIOD_S = 3


def _workload(name: str, image: str) -> Json:
    labels = {"k8s-app": name, "app.kubernetes.io/name": name}
    tolerations = [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    ]
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": name, "image": image}], "tolerations": tolerations},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod},
    }


def _service(name: str, app: str, ports: list[Json], extra: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"selector": {"k8s-app": app}, "ports": ports, **extra},
    }


def _objects(addon: str, settings: Settings) -> list[Json]:
    if addon == "coredns":
        dns = str(published(settings)["cluster-dns"]).split(",")[0]
        ports: list[Json] = [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]
        return [
            _workload("coredns", "rancher/mirrored-coredns-coredns"),
            _service("kube-dns", "coredns", ports, {"clusterIP": dns}),
        ]
    if addon == "local-storage":
        storage_class: Json = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "provisioner": "rancher.io/local-path",
            "metadata": {
                "name": "local-path",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete",
        }
        return [_workload("local-path-provisioner", "rancher/local-path-provisioner"), storage_class]
    if addon == "metrics-server":  # without its APIService: one that nobody serves breaks discovery for everybody
        return [_workload("metrics-server", "rancher/mirrored-metrics-server")]
    if addon == "traefik":
        ports = [{"name": "web", "port": 80}, {"name": "websecure", "port": 443}]
        return [
            _workload("traefik", "rancher/mirrored-library-traefik"),
            _service("traefik", "traefik", ports, {"type": "LoadBalancer"}),
        ]
    return [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        for name in _RUNTIMES
    ]


def _crds() -> list[Json]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        for group, kind, plural, scope in _CRDS
    ]


class Addons:
    def __init__(self, paths: Paths, settings: Settings) -> None:
        self._paths, self._settings = paths, settings
        self._applied: dict[Path, str] = {}  # file -> digest of what was applied or refused

    def write_packaged(self) -> None:
        """Rewritten at each start, removed when disabled."""
        for addon in PACKAGED:
            target = self._paths.manifests / f"{addon}.yaml"
            if self._disabled(addon):
                target.unlink(missing_ok=True)
            else:
                write(target, yaml.safe_dump_all(_objects(addon, self._settings)))

    async def deploy_packaged(self) -> None:
        """By the holder of the controllers only: the objects are the same from every server."""
        folder = self._paths.server / "standin-packaged"
        write(folder / "crds.yaml", yaml.safe_dump_all(_crds()))
        wanted, unwanted = [folder / "crds.yaml"], []
        for addon in PACKAGED:
            write(folder / f"{addon}.yaml", yaml.safe_dump_all(_objects(addon, self._settings)))
            skipped = (self._paths.manifests / f"{addon}.yaml.skip").exists()
            if self._disabled(addon):
                unwanted.append(folder / f"{addon}.yaml")
            elif not skipped:
                wanted.append(folder / f"{addon}.yaml")
        await self._apply(wanted)
        if unwanted:
            await self._kubectl("delete", "--ignore-not-found", "--wait=false", *_files(unwanted))

    async def apply_manifests(self) -> None:
        """Never returns; files of other people, at the start and when they change."""
        while True:
            found = sorted(p for p in self._paths.manifests.rglob("*") if p.suffix in (".yaml", ".yml", ".json"))
            own = {self._paths.manifests / f"{addon}.yaml" for addon in PACKAGED}
            for path in found:
                if path in own or path.with_name(path.name + ".skip").exists():
                    continue
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                if self._disabled(path.stem):
                    await self._kubectl("delete", "--ignore-not-found", "--wait=false", *_files([path]))
                    path.unlink(missing_ok=True)
                elif self._applied.get(path) != digest and await self._apply([path]):
                    self._applied[path] = digest
            await asyncio.sleep(_PERIOD_S)

    def _disabled(self, addon: str) -> bool:
        return addon in self._settings.items("disable")

    async def _apply(self, files: list[Path]) -> bool:
        return await self._kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=deploy@k3s", *_files(files)
        )

    async def _kubectl(self, *arguments: str) -> bool:
        kubeconfig = self._paths.cred / "admin.kubeconfig"
        status, output = await children.run([binary("kubectl"), f"--kubeconfig={kubeconfig}", *arguments])
        if status:
            log.error(f"Failed to process config: kubectl {arguments[0]}: {output.strip()}")
        return status == 0


def _files(paths: list[Path]) -> list[str]:
    return [f"--filename={path}" for path in paths]
