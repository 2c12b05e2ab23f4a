"""A fleet of many invented sites, made from the shipped documents, to time reading and judging."""

import re
import shutil
import time
from pathlib import Path

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
    tunnels = project["config"][COMMON_KEY]["value"]["tunnels"]
    for number in range(len(files), count):
        site = f"s{number}"
        (folder / f"Pulumi.{site}.yaml").write_text(_invented(text, site, number), encoding="utf-8")
        ends = {"franca": f"10.255.{number}.1", site: f"10.255.{number}.2"}
        tunnels.append({"interface": f"wg{number}", "cidr": f"10.255.{number}.0/30", "ends": ends})
    (folder / PROJECT_FILE).write_text(yaml.safe_dump(project), encoding="utf-8")


def _invented(text: str, site: str, number: int) -> str:
    """The document of `sp` with names, addresses and numbers of its own."""
    ranges = iter(range(0, 256, 64))
    for taken in ("10.42.0.0/16", "10.142.0.0/16", "10.52.0.0/16", "10.152.0.0/16"):
        text = text.replace(taken, f"10.{160 + number}.{next(ranges)}.0/18")
    text = text.replace("192.168.10.", f"172.20.{number}.").replace("65002", str(65002 + number))
    text = text.replace("cluster_id: 2", f"cluster_id: {number + 1}")
    text = re.sub(r"\b(cluster-sp|gpu-sp|vm-sp|pve-ippri|argocd-sp|ArgoCD-sp)\b", rf"\1-{site}", text)
    text = re.sub(r"\b(gpu-sp-s\d+)-(01|context)\b", r"\1-\2", text)
    return re.sub(r"(site|member_name): sp\b", rf"\1: {site}", text)
