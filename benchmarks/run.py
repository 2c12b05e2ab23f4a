"""Measures the program against a bare Pulumi program that registers the same resources; prints a Markdown table.

Needs a running lab that is up to date (`./fleet lab up`). Writes below the lab's folder alone. No test runs this: a
timing depends on what else the machine does.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.many_sites import judged_fleet
from lab import PROJECT, control, toolchain
from lab.engine import Engine
from lab.place import Place, here

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600
HEAD = ("site, resources, measure", "ours, s", "processor, s", "bare, s", "processor, s", "ratio", "processor ratio")
ENGINE_VERBS = {"no-op preview": ["preview"], "no-op up": ["up", "--yes", "--skip-preview"]}


class Took(NamedTuple):
    """Seconds of one run."""

    wall: float
    processor: float


class Bench:
    """One site: the real program in the lab's own folder, the bare one beside it on a copy of the same state."""

    def __init__(self, place: Place, site: str) -> None:
        self.site, self.place = site, place
        self.binaries = toolchain.ensure(lambda line: print(line, file=sys.stderr))
        self.environment = Engine(place, self.binaries).environment()
        self.folder = place.root / "bench" / site
        self.record = self.folder / "record.jsonl"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)

    def prepare(self) -> int:
        """Records what the program registers and lays the bare program out. Returns how many resources that are."""
        for name, source in (("record", "record_program.py"), ("bare", "bare_program.py")):
            program = self.folder / name
            program.mkdir(mode=0o700)
            shutil.copyfile(HERE / source, program / "__main__.py")
            self._stack_files(program)
        shutil.copytree(self.place.state, self.folder / "state")
        self._pulumi(self.folder / "record", "preview", "--expect-no-changes", state=self.place.state)
        # The bare program has no configuration of ours: what it reads is the record.
        file = self.folder / "bare" / f"Pulumi.{self.site}.yaml"
        file.write_text(yaml.safe_dump({"encryptionsalt": yaml.safe_load(file.read_text())["encryptionsalt"]}))
        project = {"name": "fleet", "runtime": "python"}
        (self.folder / "bare/Pulumi.yaml").write_text(yaml.safe_dump(project))
        return len(self.record.read_text().splitlines())

    def _stack_files(self, program: Path) -> None:
        for file in self.place.work.glob("Pulumi*.yaml"):
            shutil.copyfile(file, program / file.name)

    def ours(self, verb: list[str]) -> None:
        self._pulumi(self.place.work, *verb, "--expect-no-changes", state=self.place.state)

    def bare(self, verb: list[str]) -> None:
        self._pulumi(self.folder / "bare", *verb, "--expect-no-changes", state=self.folder / "state")

    def our_plan(self) -> None:
        self._run([sys.executable, "-P", "-m", "cli", "plan", self.site, "--json"], {})

    def bare_plan(self) -> None:
        self._run([sys.executable, "-P", str(HERE / "bare_program.py")], {"FLEET_BENCH_MOCKS": "1"})

    def _pulumi(self, folder: Path, verb: str, *more: str, state: Path) -> None:
        command = [str(self.binaries / "pulumi"), verb, "--stack", self.site, *more]
        command += ["--cwd", str(folder), "--non-interactive", "--suppress-permalink=true", "--color", "never"]
        self._run(control.inside(self.place.root, command), {"PULUMI_BACKEND_URL": f"file://{state}"})

    def _run(self, command: list[str], more: dict[str, str]) -> None:
        environment = self.environment | {
            "PYTHONPATH": str(PROJECT),
            "FLEET_BENCH_RECORD": str(self.record),
            "FLEET_BENCH_PROGRAM": str(self.place.work / "__main__.py"),
            **more,
        }
        done = subprocess.run(
            command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def compare(one: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[list[Took], list[Took]]:
    """Turn by turn, each first in every other round; one round before counts for nothing."""
    took: tuple[list[Took], list[Took]] = ([], [])
    for number in range(rounds + 1):
        for index in (0, 1) if number % 2 else (1, 0):
            began, used = time.perf_counter(), _processor_s()
            (one, other)[index]()
            if number:
                took[index].append(Took(time.perf_counter() - began, _processor_s() - used))
    return took


def _processor_s() -> float:
    """Of all commands so far and what they waited for: what else the machine does matters less here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(what: str, ours: list[Took], bare: list[Took]) -> str:
    cells = [what]
    for column in zip(*ours, strict=True), zip(*bare, strict=True):
        cells += [_spread(values) for values in column]
    wall, processor = (
        statistics.median(mine) / statistics.median(other)
        for mine, other in zip(zip(*ours, strict=True), zip(*bare, strict=True), strict=True)
    )
    return f"| {' | '.join(cells)} | **{wall:.2f}** | **{processor:.2f}** |"


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", nargs="*", default=["franca", "sp"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    place = here()
    if not control.running(place.root):
        raise SystemExit("no lab runs; start it with: ./fleet lab up")
    machine = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"
    print(f"{time.strftime('%Y-%m-%d')}, {machine}, {options.rounds} rounds\n")
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    for site in options.sites:
        bench = Bench(place, site)
        count = bench.prepare()
        title = f"{site}, {count}"
        print(row(f"{title}, plan", *compare(bench.our_plan, bench.bare_plan, options.rounds)), flush=True)
        for name, verb in ENGINE_VERBS.items():
            ours, bare = compare(partial(bench.ours, verb), partial(bench.bare, verb), options.rounds)
            print(row(f"{title}, {name}", ours, bare), flush=True)
    sites, parse_s, judge_s, found = judged_fleet(place.root / "bench" / "fleet", 50)
    print(f"\n{sites} sites: read and parsed in {parse_s:.2f} s, judged in {judge_s:.2f} s ({found} findings)")
    shutil.rmtree(place.root / "bench")


if __name__ == "__main__":
    main()
