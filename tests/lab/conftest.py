"""Both sites for the end-to-end tests: a copy of the project whose documents a test may edit, and one lab for all.

The tests of this folder that share the lab run first and in the order of `ORDER`: bringing two sites up is what costs.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from infra.config import Fleet
from infra.config.loading import SITE_KEY
from lab import control
from lab.made_up import private_file
from lab.place import Place

if TYPE_CHECKING:
    from tests.lab.drill import Drill
    from tests.lab.routes import Sites

ROOT = Path(__file__).parents[2]
ORDER = (
    "test_kills",
    "test_adoption",
    "test_interruptions",
    "test_migration",
    "test_sites",
    "test_bgp",
    "test_mesh",
    "test_policy",
    "test_proxmox_faults",
    "test_changes",
    "test_failures",
    "test_guard",
    "test_backup",
    "test_leftovers",
)
NOT_COPIED = (".git", ".venv", ".ci", "tests", "benchmarks", "__pycache__", "*.pyc", ".*_cache", ".hypothesis")
PACKAGES = ("infra", "cli", "lab", "operations", "policy")
UP_TIMEOUT_S = 420
# A snapshot of etcd ends with the SHA-256 of what stands before it.
WHOLE = (
    'f={file}; n=$(($(wc -c <"$f") - 32)); '
    'test "$(head -c "$n" "$f" | sha256sum | cut -d " " -f 1)" = '
    '"$(tail -c 32 "$f" | od -An -v -tx1 | tr -d " \\n")" && echo whole'
)
PLANTED = {  # what a production stack file holds beside its document; none of it may reach the lab
    "salt": "v1:planted-salt=:v1:planted:check==",
    "cipher": "v1:planted-nonce:planted-cipher-text==",
    "flat": "fleet@pve!pulumi=planted-flat-secret",
}
Document = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.path.stem if item.path.parent.name == "lab" else ""
        return ORDER.index(name) if name in ORDER else len(ORDER)

    items.sort(key=place)


@dataclass(frozen=True)
class Ran:
    """A command that ended, and what it printed."""

    code: int
    out: str

    @property
    def text(self) -> str:
        """Without line breaks: wrapping is no matter of a message."""
        return " ".join(self.out.split())


class Running:
    """`./fleet ...` as a process of its own session, its output in a file."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.signal(signal.SIGKILL)
        self.process.wait(30)

    @property
    def out(self) -> str:
        return self._output.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To the whole group, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ended(self, timeout_s: float = UP_TIMEOUT_S) -> Ran:
        try:
            return Ran(self.process.wait(timeout_s), self.out)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:.0f} s:\n{self.out}") from None


@dataclass(frozen=True)
class Checkout:
    """A copy of the project and its lab."""

    root: Path
    place: Place
    environment: dict[str, str]
    machine: tuple[str, str]  # what `machine` said before there was a lab
    original: dict[str, bytes] = field(default_factory=dict)  # `files` before anything ran
    runs: list[Path] = field(default_factory=list)  # outputs of every command so far

    def start(self, *arguments: str, **environment: str) -> Running:
        return self.run([str(self.root / "fleet"), *arguments], **environment)

    def run(self, command: list[str], **environment: str) -> Running:
        output = self.root.parent / f"output-{len(self.runs)}.txt"
        self.runs.append(output)
        return Running(command, self.root, self.environment | environment, output)

    def fleet(self, *arguments: str, timeout_s: float = UP_TIMEOUT_S, **environment: str) -> Ran:
        with self.start(*arguments, **environment) as running:
            return running.ended(timeout_s)

    def ok(self, *arguments: str) -> str:
        """What a command printed that must succeed."""
        ran = self.fleet(*arguments)
        assert ran.code == 0, f"fleet {' '.join(arguments)}: exit code {ran.code}\n{ran.out}"
        return ran.out

    def kubectl(self, cluster: str, *arguments: str) -> str:
        """Directly, because a start of the command line takes a second; that it works is tested once."""
        return self.inside(
            [str(self.toolchain / "kubectl"), "--kubeconfig", str(self.place.kubeconfigs / f"{cluster}.yaml"),
             "--request-timeout=20s", *arguments]
        )  # fmt: skip

    def try_kubectl(self, cluster: str, *arguments: str) -> str:
        """Empty while the cluster does not answer."""
        try:
            return self.kubectl(cluster, *arguments)
        except (AssertionError, subprocess.TimeoutExpired):
            return ""

    def answers(self, address: str) -> bool:
        url = f"https://{address}:6443/ping"
        return "pong" in self.inside(["sh", "-c", f"curl -ksS --max-time 2 {url} 2>&1 || true"])

    def all_ready(self, cluster: str) -> bool:
        text = self.try_kubectl(cluster, "get", "nodes", "--no-headers")
        return bool(text) and all(line.split()[1] == "Ready" for line in text.splitlines())

    def get(self, cluster: str, *what: str) -> Any:
        return json.loads(self.kubectl(cluster, "get", *what, "-o", "json"))

    def nodes(self, cluster: str) -> dict[str, Document]:
        return {node["metadata"]["name"]: node for node in self.get(cluster, "nodes")["items"]}

    def ssh(self, node: str, script: str) -> str:
        """What a script printed on a node; directly, as `kubectl`."""
        guest = next(guest for guest in self.ask("status")["nodes"] if guest["name"] == node)
        key = self.root.parent / f"key-{guest['site']}"
        private_file(key, json.loads(self.place.secrets.read_text())[guest["site"]]["ssh_private_key"])
        options = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "LogLevel=ERROR", "IdentitiesOnly=yes")
        given = [part for option in options for part in ("-o", option)]
        return self.inside(["ssh", "-i", str(key), *given, f"{guest['user']}@{guest['address']}", script])

    def inside(self, command: list[str], timeout_s: float = 60) -> str:
        """What a command in the lab's core printed."""
        done = subprocess.run(
            control.inside(self.place.root, command), cwd=self.root, env=self.environment, capture_output=True,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    @property
    def toolchain(self) -> Path:
        return Path(json.loads((self.place.root / "topology.json").read_text())["toolchain"])

    def ask(self, operation: str, node: str = "") -> dict[str, Any]:
        return control.request(self.place.root, op=operation, node=node)

    def stack_file(self, site: str) -> Path:
        return self.root / f"Pulumi.{site}.yaml"

    def document(self, site: str) -> Document:
        value: Document = yaml.safe_load(self.stack_file(site).read_text())["config"][SITE_KEY]
        return value

    def edit(self, site: str, change: Callable[[Document], None]) -> None:
        data = yaml.safe_load(self.stack_file(site).read_text())
        change(data["config"][SITE_KEY])
        self.stack_file(site).write_text(yaml.safe_dump(data, sort_keys=False))

    @contextmanager
    def edited(self, site: str, change: Callable[[Document], None]) -> Iterator[None]:
        before = self.stack_file(site).read_bytes()
        self.edit(site, change)
        try:
            yield
        finally:
            self.stack_file(site).write_bytes(before)

    def files(self) -> dict[str, bytes]:
        """Every file of the working tree but the environment's."""
        found = (
            path for path in self.root.rglob("*") if path.is_file() and not path.is_relative_to(self.root / ".venv")
        )
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found if path.suffix != ".pyc"}

    def log(self, verb: str, site: str) -> str:
        path = self.place.logs / f"pulumi-{verb}-{site}.log"
        return path.read_text() if path.exists() else ""


def eventually(check: Callable[[], Any], timeout_s: float, what: Callable[[], object]) -> Any:
    """Polls until `check` returns something true, and returns that; `what` says what there is instead."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what()}"
        time.sleep(0.2)


def machine() -> tuple[str, str]:
    """What a lab could leave on a machine besides processes and files: mounts, and names of network namespaces."""
    netns = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    return Path("/proc/mounts").read_text(), netns.stdout


def summaries(output: str) -> dict[str, str]:
    """What an update did by site, such as `43 unchanged`."""
    found = (
        re.match(r"  (\S+): (.* (?:unchanged|created|updated|deleted|replaced).*) in \d+ s$", line)
        for line in output.splitlines()
    )
    return {match[1]: match[2] for match in found if match}


def processes_of(place: Place) -> list[str]:
    """Command lines of all processes that belong to a lab: by its folder in arguments or environment."""
    mark, found = str(place.root).encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            arguments = (entry / "cmdline").read_bytes()
            if arguments and mark in arguments + (entry / "environ").read_bytes():
                found.append(f"{entry.name} {arguments.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """The copy, without a lab; whatever lab it has at the end is taken down."""
    base = tmp_path_factory.mktemp("e2e")
    root = base / "project"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    # A copy of the environment, made of links, so that the launcher finds one that is complete.
    shutil.copytree(sys.prefix, root / ".venv", copy_function=_link, symlinks=True)
    stamp = subprocess.run("cksum <requirements.lock", shell=True, cwd=root, capture_output=True, text=True, check=True)
    (root / ".venv/.complete").unlink(missing_ok=True)
    (root / ".venv/.complete").write_text(f"{stamp.stdout.strip()} {root}\n")
    # Every process of a lab would compile what it imports: none of them writes byte code.
    subprocess.run([sys.executable, "-m", "compileall", "-q", *PACKAGES], cwd=root, check=True)
    _plant(root / "Pulumi.sp.yaml")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PULUMI_", "KUBE", "FLEET_"))}
    environment = kept | {
        "FLEET_LAB_DIR": str(base / "lab"),
        "XDG_STATE_HOME": str(base / "state"),
        "COLUMNS": "160",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    made = Checkout(root=root, place=Place(base / "lab"), environment=environment, machine=machine())
    made.original.update(made.files())
    try:
        yield made
    finally:
        if made.place.root.exists():
            made.fleet("lab", "down")
        shutil.rmtree(root, ignore_errors=True)


def _plant(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    data["encryptionsalt"] = PLANTED["salt"]
    data["config"] |= {
        "fleet:proxmox_root_password": {"secure": PLANTED["cipher"]},
        "fleet:proxmox_api_token": PLANTED["flat"],
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False))


@dataclass(frozen=True)
class Lab:
    """Both sites up, and how they came up."""

    checkout: Checkout
    first: str  # output of the run that brought them up
    arguments: frozenset[bytes]  # of every process that was seen meanwhile


def without_a_lab(checkout: Checkout) -> None:
    """Ends the one that other tests left behind."""
    if checkout.place.root.exists():
        checkout.ok("lab", "down")


@pytest.fixture(scope="session")
def drill(checkout: Checkout) -> "Drill":
    """Both sites up beside the guests that were there before, with a killed engine on the way in every phase."""
    from tests.lab.drill import carried_out  # noqa: PLC0415  # it uses this module

    without_a_lab(checkout)
    return carried_out(checkout, int(os.environ.get("FLEET_KILL_SEED") or secrets.randbelow(10**6)))


@pytest.fixture(scope="session")
def lab(checkout: Checkout) -> Lab:
    without_a_lab(checkout)
    seen: set[bytes] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(entry.read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        first = checkout.ok("lab", "up", "--empty")
    finally:
        done.set()
        watcher.join()
    return Lab(checkout=checkout, first=first, arguments=frozenset(seen))


@pytest.fixture(scope="module")
def sites(lab: Lab, fleet: Fleet) -> "Iterator[Sites]":
    """Speakers on routers and nodes of both sites."""
    from tests.lab.routes import speaking  # noqa: PLC0415  # it uses this module

    yield from speaking(lab, fleet)
