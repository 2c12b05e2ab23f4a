"""A fleet of many invented sites, made from the shipped documents, to time reading and judging."""

import itertools
import re
import shutil
import time
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

from infra.config import load
from infra.config.loading import COMMON_KEY, PROJECT_FILE, stack_files
from infra.rules import judge
from lab import PROJECT


def judged_fleet(folder: Path, count: int) -> tuple[int, float, float, int]:
    """How many sites there are, seconds to read and parse them, seconds to judge them, and findings."""
    _write(folder, count)
    began = time.perf_counter()
    fleet, faults = load(folder)
    parsed = time.perf_counter()
    if fleet is None:
        raise SystemExit("\n".join(map(str, faults)))
    verdict = judge(fleet)
    judged = time.perf_counter()
    for stop in verdict.stops[:20]:
        print(stop)
    return len(fleet.sites), parsed - began, judged - parsed, len(verdict.stops) + len(verdict.warnings)


def _write(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = stack_files(PROJECT)
    for path in files.values():
        shutil.copyfile(path, folder / path.name)
    text = (PROJECT / "Pulumi.sp.yaml").read_text(encoding="utf-8")
    project = yaml.safe_load((PROJECT / PROJECT_FILE).read_text(encoding="utf-8"))
    sites = [*files, *(f"s{number}" for number in range(len(files), count))]
    for number, site in enumerate(sites[len(files) :], start=len(files)):
        (folder / f"Pulumi.{site}.yaml").write_text(_invented(text, site, number), encoding="utf-8")
    project["config"][COMMON_KEY]["value"]["tunnels"] = _tunnels(sites)
    (folder / PROJECT_FILE).write_text(yaml.safe_dump(project), encoding="utf-8")


def _tunnels(sites: list[str]) -> list[dict[str, Any]]:
    """One for each pair of sites, the first of them as shipped; an interface serves a site once."""
    first, pairs = IPv4Address("10.255.0.0"), itertools.combinations(range(len(sites)), 2)
    return [
        {
            "interface": f"wg{(one + other - 1) % len(sites)}",
            "cidr": f"{first + 4 * index}/30",
            "ends": {sites[one]: str(first + 4 * index + 1), sites[other]: str(first + 4 * index + 2)},
        }
        for index, (one, other) in enumerate(pairs)
    ]


def _invented(text: str, site: str, number: int) -> str:
    """The document of `sp` with names, addresses and numbers of its own."""
    ranges = iter(range(0, 256, 64))
    for taken in ("10.42.0.0/16", "10.142.0.0/16", "10.52.0.0/16", "10.152.0.0/16"):
        text = text.replace(taken, f"10.{160 + number}.{next(ranges)}.0/18")
    text = text.replace("192.168.10.", f"172.20.{number}.").replace("65002", str(65002 + number))
    text = text.replace("cluster_id: 2", f"cluster_id: {number + 1}")
    text = re.sub(r"\b(cluster-sp|gpu-sp|vm-sp|pve-ippri|argocd-sp|ArgoCD-sp)\b", rf"\1-{site}", text)
    text = re.sub(r"\b(gpu-sp-s\d+)-(01|context)\b", r"\1-\2", text)
    text = text.replace("endpoint: null\n      dynamic: true", f"endpoint: 198.18.{number}.1")
    text = re.sub(r"\n +- wireguard\.dynamic\b", "", text)
    text = text.replace("public_address: null", f"public_address: 198.18.{number}.1")
    text = re.sub(r"\n +- vyos\.public_address\b", "", text)
    text = text.replace("vllm.colabh.org", f"vllm-{site}.colabh.org")
    text = re.sub(r"apps/sp\b", f"apps/{site}", text)
    return re.sub(r"(site|member_name): sp\b", rf"\1: {site}", text)
