"""The shell scripts of the K3s layer, run for real on a made-up machine in a temporary folder.

Absolute paths are moved below that folder and a few programs of the machine are replaced by small ones that note how
they were called; everything else, the shell, awk, sed, is what the machine has. The clock is made up too: waiting costs
nothing, and every wait must end.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.config import Cluster
from infra.k3s import cluster, settings
from infra.remote import assemble
from tests.sites import three_sites

SHELLS = [shell for shell in ("dash", "bash --posix", "busybox sh") if shutil.which(shell.split()[0])]
MOVED = re.compile(r"(?<![\w$}/.])/(etc|usr/local|var/lib|tmp|proc|sys|dev/kmsg)(?=[/\s\":]|$)", re.MULTILINE)
SECRET = "K10secrettoken::server:hunter2"

PROGRAMS = {
    "hostname": "echo machine",
    "sleep": "echo $(($(cat @/clock) + 10 * $1)) > @/clock",  # a long wait in few rounds
    "date": "cat @/clock",
    "df": 'printf "a\\nb 1 1 $(cat @/free) 1 1\\n"',
    "modprobe": 'echo "modprobe $*" >> @/calls',
    "sysctl": 'echo "sysctl $*" >> @/calls',
    "mount": 'echo "mount $*" >> @/calls',
    "getent": 'echo "fleet:x:1:1::@/home:/bin/sh"',
    "chown": ":",
    "journalctl": "cat @/journal 2>/dev/null",
    "curl": """
echo "curl $*" >> @/calls
for last; do :; done
case $* in
*/ping*) host=${last#https://}; [ -f "@/up/${host%%:*}" ] && printf pong && exit 0; exit 7 ;;
esac
while [ "$1" != -o ]; do shift; done
file=@/mirror/${3##*/}
if [ ! -f "$file" ]; then echo half > "$2"; exit 22; fi
cp "$file" "$2"
""",
    "systemctl": """
case $1 in is-active | show) ;; *) echo "systemctl $*" >> @/calls ;; esac
unit=$(for last; do :; done; echo "$last")
state=@/units/$unit
mkdir -p "$state"
case $1 in
is-active) cat "$state/active" 2>/dev/null || { echo inactive; exit 3; } ;;
reset-failed) rm -f "$state/restarts" ;;
stop) rm -f "$state/active" ;;
start)
    rm -f "$state/restarts"
    if [ -f @/broken ]; then echo activating > "$state/active"; exit 0; fi
    [ ! -f @/slow ] || exit 0
    echo active > "$state/active"
    cp @/etc/rancher/k3s/config.yaml @/started.yaml
    cat @/etc/rancher/k3s/config.yaml.d/*.yaml >> @/started.yaml 2>/dev/null || true
    case $unit in k3s) made=server/db/etcd/member/wal ;; *) made=agent/etc ;; esac
    mkdir -p @/var/lib/rancher/k3s/$made
    ;;
show)
    case $3 in
    ActiveState) echo "ActiveState=$(cat "$state/active" 2>/dev/null || echo inactive)" ;;
    NRestarts)
        count=$(cat "$state/restarts" 2>/dev/null || echo 0)
        echo "NRestarts=$count"
        [ ! -f @/broken ] || echo $((count + 1)) > "$state/restarts"
        ;;
    esac
    ;;
esac
""",
}
K3S = """#!/bin/sh
echo "k3s $*" >> @/calls
case "$*" in
--version) echo "k3s version v1.32.13+k3s1 (0123abcd)"; echo "go version go1.23.1" ;;
*"get --raw /readyz"*) [ -f @/unready ] || echo ok ;;
*"get node "*EtcdIsVoter*) [ -f @/learner ] || echo True ;;
*"get node "*) [ ! -f @/unregistered ] ;;
*"get nodes "*'{.metadata.name}{" "}{end}'*) [ ! -f @/deaf ] || exit 1; cat @/nodes ;;
*"get nodes "*) [ ! -f @/deaf ] || exit 1; cat @/members ;;
*"get namespace kube-system"*) echo uid-1 ;;
*"apply -f -"*) cat >> @/applied ;;
*"get secret"*ca*) printf '{"ca": "Q0E=", "token": "VE9L"}' ;;
*"get secret"*) [ -f @/tokenless ] || printf VE9L ;;
"etcd-snapshot save "*)
    [ ! -f @/full ] || { echo 'level=warning msg="Unknown flag --server"'; echo "level=fatal: no space left"; exit 1; }
    [ -f @/elsewhere ] || { mkdir -p @/var/lib/rancher/k3s/server/db/snapshots
        echo data > "@/var/lib/rancher/k3s/server/db/snapshots/$4-machine-$(cat @/clock)"; }
    ;;
esac
"""
IMAGES = "k3s-airgap-images-amd64.tar.zst"


@dataclass
class Box:
    """A machine in a folder."""

    root: Path
    shell: str
    last: subprocess.CompletedProcess[str] = field(init=False)

    def __post_init__(self) -> None:
        for folder in ("usr/local/sbin", "usr/local/bin", "tmp", "up", "mirror", "units", "etc/systemd/system", "home"):
            (self.root / folder).mkdir(parents=True)
        for name, text in PROGRAMS.items():
            self.program(self.root / "usr/local/sbin" / name, f"#!/bin/sh\n{text}\n")
        self.write("clock", "1000\n")
        self.write("free", "9999999\n")
        self.write("members", "")
        self.write("calls", "")
        self.program(self.root / "mirror/k3s", K3S)
        self.write(f"mirror/{IMAGES}", "images\n")

    def program(self, path: Path, text: str) -> None:
        path.write_text(text.replace("@/", f"{self.root}/"))
        path.chmod(0o755)

    def write(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def has(self, name: str) -> bool:
        return (self.root / name).exists()

    def mode(self, name: str) -> int:
        return (self.root / name).stat().st_mode & 0o777

    def sha256(self, name: str) -> str:
        return hashlib.sha256((self.root / name).read_bytes()).hexdigest()

    def moved(self, text: str) -> str:
        return MOVED.sub(lambda match: f"{self.root}/{match[1]}", text)

    def run(self, script: str, data: dict[str, str] | None = None) -> int:
        """Exit status of a script that is sent with its sections as the program sends it."""
        self.last = subprocess.run(
            self.shell.split(),
            input=assemble(self.moved(script), data or {}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
        assert not list((self.root / "tmp").iterdir()), "data is left behind"
        return self.last.returncode

    def lib(self, commands: str, data: dict[str, str] | None = None) -> int:
        return self.run(f"{cluster.read_script('lib')}\n{commands}", data)

    def calls(self) -> list[str]:
        """What was called since the last look."""
        lines = self.read("calls").splitlines()
        self.write("calls", "")
        return lines

    def files(self) -> dict[str, tuple[str, int, int]]:
        """Every file of the machine with its content, mode and time of change."""
        own = ("etc", "usr", "var", "home")
        return {
            str(path): (path.read_text(), path.stat().st_mode, path.stat().st_mtime_ns)
            for folder in own
            for path in sorted((self.root / folder).rglob("*"))
            if path.is_file()
        }


@pytest.fixture(params=SHELLS)
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Box:
    """In each POSIX shell that the machine has."""
    return Box(tmp_path / "m", str(request.param))


@pytest.fixture
def sh(tmp_path: Path) -> Box:
    """In /bin/sh, as on a node."""
    return Box(tmp_path / "m", "/bin/sh")


SECTIONS = {
    "empty": "",
    "one": "no newline at the end",
    "leading": "  two blanks\n\ttab\n\n\nend\n",
    "odd": "back\\slash %s %d $HOME `id` 'quoted' \"twice\" \\n & ;\n=no section\n ===  neither\n",
    "yaml.yaml": 'a: "x"\nlist:\n  - "y"\n',
}


def test_sections_arrive_as_they_were_packed(box: Box) -> None:
    assert box.lib('receive; cp -r "$work" out', SECTIONS) == 0
    got = {path.name: path.read_text() for path in (box.root / "out").iterdir()}
    assert got == {name: f"{text.rstrip(chr(10))}\n" if text else "" for name, text in SECTIONS.items()}


def test_data_is_for_root_alone_while_a_script_runs(box: Box) -> None:
    assert box.lib('receive; ls -ld "$work" > mode', {"token": SECRET}) == 0
    assert box.read("mode").startswith("drwx------")


@pytest.mark.parametrize(
    ("ending", "code"), [("exit 0", 0), ("stop X-01 a b c", 3), ("false", 1), ("$unset_variable", None)]
)
def test_no_data_is_left_however_a_script_ends(box: Box, ending: str, code: int | None) -> None:
    status = box.lib(f"receive; {ending}", {"token": SECRET})  # run() looks for leftovers
    assert status == code if code is not None else status != 0


@pytest.mark.parametrize("signal", ["TERM", "INT", "HUP"])
def test_no_data_is_left_when_the_connection_breaks(box: Box, signal: str) -> None:
    assert box.lib(f"receive; kill -{signal} $$; echo survived", {"token": SECRET}) == 130
    assert "survived" not in box.last.stdout


def test_a_setting_is_everything_after_its_first_equals_sign(box: Box) -> None:
    box.lib("receive; setting n a; setting n b; setting n none; setting n c", {"n": "a=1=2\nb= x \nc=\naa=9\na=late"})
    assert box.last.stdout == "1=2\n x \n\n"


def test_a_stop_names_rule_machine_and_remedy_and_exits_3(box: Box) -> None:
    assert box.lib('stop K3S-99 "this" "that" "do it"') == 3
    assert box.last.stderr == "[K3S-99] machine: found this; expected that; do it\n"


def test_put_installs_once_with_its_mode_and_says_so(box: Box) -> None:
    put = 'receive; put "$work/a" /etc/deep/file 0600'
    assert (box.lib(put, {"a": "1"}), box.last.stdout, box.mode("etc/deep/file")) == (0, "changed\n", 0o600)
    before = box.files()
    assert (box.lib(put, {"a": "1"}), box.last.stdout, box.files()) == (0, "", before)
    assert (box.lib(put, {"a": "2"}), box.last.stdout, box.read("etc/deep/file")) == (0, "changed\n", "2\n")
    assert [path.name for path in (box.root / "etc/deep").iterdir()] == ["file"]


CONFIG = 'disable:\n  - "servicelb"\n  - "traefik"\nempty: []\nflag: true\nlast:\n  - "z"\nname: "a: b"\nnumber: 5\n'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", "true"),
        ("name", '"a: b"'),
        ("number", "5"),
        ("disable", '"servicelb","traefik"'),
        ("empty", "[]"),
        ("last", '"z"'),
        ("absent", ""),
        ("nam", ""),
        ("able", ""),
    ],
)
def test_key_reads_scalars_lists_and_nothing(box: Box, name: str, value: str) -> None:
    assert box.lib(f'receive; key "$work/c" {name}', {"c": CONFIG}) == 0
    assert box.last.stdout.strip() == value


def test_key_reads_what_the_program_writes(sh: Box) -> None:
    for _, site, one in three_sites().clusters():
        node = site.guests[one.servers[0]]
        config = settings.server_config(one, node)
        names = " ".join(config)
        assert sh.lib(f'receive; for k in {names}; do key "$work/c" $k; done', {"c": settings.text(config)}) == 0
        assert len(sh.last.stdout.splitlines()) == len(config)


def test_key_of_a_missing_file_is_nothing(box: Box) -> None:
    assert box.lib("key /etc/nowhere x") == 0
    assert box.last.stdout == ""


def test_k3s_09_every_frozen_change_is_reported_together_before_anything_changes(box: Box) -> None:
    box.write("var/lib/rancher/k3s/server/db/x")
    box.write("etc/rancher/k3s/config.yaml", 'cluster-cidr: "10.1.0.0/16"\ndisable-kube-proxy: true\nother: 1\n')
    before = box.files()
    data = {
        "frozen": "cluster-cidr\nservice-cidr\ndisable-kube-proxy\nnode-name",
        "config.yaml": 'cluster-cidr: "10.2.0.0/16"\nservice-cidr: "10.9.0.0/16"\nother: 2\n',
    }
    assert box.lib("receive; frozen; echo went on", data) == 3
    lines = box.last.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("[K3S-09] machine: ") and "k3s-rebuild.md" in line for line in lines)
    assert 'cluster-cidr from "10.1.0.0/16" to "10.2.0.0/16"' in lines[0]
    assert 'service-cidr from nothing to "10.9.0.0/16"' in lines[1]
    assert "disable-kube-proxy from true to nothing" in lines[2]
    assert box.last.stdout == ""
    assert box.files() == before


@pytest.mark.parametrize("living", [False, True])
def test_k3s_09_what_is_frozen_is_free_until_there_is_a_cluster(box: Box, living: bool) -> None:
    box.write("etc/rancher/k3s/config.yaml", 'cluster-cidr: "10.1.0.0/16"\n')
    if living:
        box.write("var/lib/rancher/k3s/agent/etc/x")
    data = {"frozen": "cluster-cidr", "config.yaml": 'cluster-cidr: "10.2.0.0/16"\n'}
    assert box.lib("receive; frozen", data) == (3 if living else 0)


def test_k3s_09_no_change_of_a_free_setting_is_refused(box: Box) -> None:
    box.write("var/lib/rancher/k3s/server/db/x")
    box.write("etc/rancher/k3s/config.yaml", CONFIG)
    assert box.lib("receive; frozen", {"frozen": "cluster-cidr", "config.yaml": CONFIG + 'tls-san: "x"\n'}) == 0


def test_gen_08_a_verified_file_is_fetched(box: Box) -> None:
    box.write("mirror/f", "payload\n")
    assert box.lib(f"fetch http://mirror/f /etc/d/f {box.sha256('mirror/f')}") == 0
    assert box.read("etc/d/f") == "payload\n"
    assert [path.name for path in (box.root / "etc/d").iterdir()] == ["f"]


def test_gen_08_a_file_with_another_checksum_is_refused_and_removed(box: Box) -> None:
    box.write("mirror/f", "payload\n")
    box.write("etc/d/f", "installed before\n")
    assert box.lib(f"fetch http://mirror/f /etc/d/f {'0' * 64}") == 3
    assert "[GEN-08]" in box.last.stderr
    assert box.sha256("mirror/f") in box.last.stderr
    assert box.read("etc/d/f") == "installed before\n"
    assert [path.name for path in (box.root / "etc/d").iterdir()] == ["f"]


def test_gen_08_a_broken_download_leaves_nothing(box: Box) -> None:
    assert box.lib(f"fetch http://mirror/none /etc/d/f {'0' * 64}") == 3
    assert "[GEN-08] machine: found no download from http://mirror/none" in box.last.stderr
    assert not list((box.root / "etc/d").iterdir())


def release(box: Box, **changes: str) -> dict[str, str]:
    """Sections of a release that comes from upstream."""
    values = {
        "base": "http://up/v1",
        "list_url": "",
        "list_sha256": "",
        "prefix": "",
        "binary_sha256": box.sha256("mirror/k3s"),
        "images_sha256": box.sha256(f"mirror/{IMAGES}"),
    } | changes
    return {"artifacts": "\n".join(f"{key}={value}" for key, value in values.items())}


def from_mirror(box: Box) -> dict[str, str]:
    sums = "".join(f"{box.sha256(f'mirror/{name}')}  k3s/v1/{name}\n" for name in ("k3s", IMAGES))
    box.write("mirror/SHA256SUMS", f"{'9' * 64}  other/k3s\n{sums}{'8' * 64}  k3s/v1/k3s-arm64\n")
    return release(
        box,
        base="http://m/k3s/v1",
        list_url="http://m/SHA256SUMS",
        list_sha256=box.sha256("mirror/SHA256SUMS"),
        prefix="k3s/v1",
        binary_sha256="",
        images_sha256="",
    )


@pytest.mark.parametrize("source", [release, from_mirror])
def test_gen_08_binary_and_images_are_installed_verified_and_once(box: Box, source: object) -> None:
    assert callable(source)
    data = source(box)
    install = 'receive; changed_binary=""; install_k3s; echo "<$changed_binary>"'
    assert box.lib(install, data) == 0, box.last.stderr
    assert box.last.stdout == "<yes>\n"
    assert box.mode("usr/local/bin/k3s") == 0o755
    assert box.has(f"var/lib/rancher/k3s/agent/images/{IMAGES}")
    box.calls()
    before = box.files()
    assert (box.lib(install, data), box.last.stdout) == (0, "<>\n")
    assert box.files() == before
    assert not [call for call in box.calls() if "/v1/" in call], "nothing is fetched twice"


@pytest.mark.parametrize("missing", ["binary_sha256", "images_sha256"])
def test_gen_08_nothing_is_installed_without_a_checksum(box: Box, missing: str) -> None:
    assert box.lib('receive; changed_binary=""; install_k3s', release(box, **{missing: ""})) == 3
    assert "[GEN-08] machine: found no checksum for" in box.last.stderr
    assert "common.k3s_checksums" in box.last.stderr


def test_gen_08_a_mirror_whose_list_differs_from_its_pin_is_refused(box: Box) -> None:
    data = from_mirror(box)
    box.write("mirror/SHA256SUMS", box.read("mirror/SHA256SUMS") + "\n")
    assert box.lib('receive; changed_binary=""; install_k3s', data) == 3
    assert "[GEN-08]" in box.last.stderr
    assert not box.has("usr/local/bin/k3s")


def test_gen_08_a_mirror_that_lists_no_such_release_is_refused(box: Box) -> None:
    data = from_mirror(box)
    data["artifacts"] = data["artifacts"].replace("prefix=k3s/v1", "prefix=k3s/v2")
    assert box.lib('receive; changed_binary=""; install_k3s', data) == 3
    assert not box.has("usr/local/bin/k3s")


def test_a_disk_too_full_for_k3s_is_named(box: Box) -> None:
    box.write("free", "1000")
    assert box.lib('receive; changed_binary=""; install_k3s', release(box)) == 3
    assert "0 MiB free" in box.last.stderr


GUARD_CASES = {
    "a new node starts": ((), 0),
    "a member with its data starts": (("var/lib/fleet/member", "var/lib/rancher/k3s/server/db/etcd/member/wal/x"), 0),
    "a member that lost its data and knows whom to join starts": (
        ("var/lib/fleet/member", "etc/rancher/k3s/config.yaml=server: https://x:6443"),
        0,
    ),
    "a member that is told in a drop-in whom to join starts": (
        ("var/lib/fleet/member", "etc/rancher/k3s/config.yaml.d/50-first-start.yaml=server: https://x:6443"),
        0,
    ),
    "a member that lost its data and knows nobody is held back": (
        ("var/lib/fleet/member", "etc/rancher/k3s/config.yaml=node-name: x\nxserver: y"),
        1,
    ),
    "a lost etcd folder without its log is lost data": (
        ("var/lib/fleet/member", "var/lib/rancher/k3s/server/db/etcd/x"),
        1,
    ),
}


@pytest.mark.parametrize(("files", "code"), GUARD_CASES.values(), ids=GUARD_CASES.keys())
def test_k3s_06_guard(box: Box, files: tuple[str, ...], code: int) -> None:
    for entry in files:
        name, _, text = entry.partition("=")
        box.write(name, f"{text}\n")
    assert box.run(cluster.read_script("guard")) == code
    assert ("[K3S-06]" in box.last.stderr) is bool(code)


def test_labels_are_set_and_those_of_the_record_that_are_gone_are_removed(box: Box) -> None:
    label = "receive; reconcile_labels n1"
    box.program(box.root / "usr/local/bin/k3s", K3S)
    assert box.lib(label, {"labels": "b=2\na.x/y=1"}) == 0
    assert box.calls() == ["k3s kubectl label node n1 --overwrite a.x/y=1 b=2"]
    assert box.lib(label, {"labels": "b=3"}) == 0
    assert box.calls() == ["k3s kubectl label node n1 --overwrite b=3 a.x/y-"]
    assert box.lib(label, {"labels": ""}) == 0
    assert box.calls() == ["k3s kubectl label node n1 --overwrite b-"]
    assert box.lib(label, {"labels": ""}) == 0
    assert box.calls() == []


def test_a_label_whose_name_begins_like_another_one_is_removed_too(box: Box) -> None:
    box.program(box.root / "usr/local/bin/k3s", K3S)
    box.lib("receive; reconcile_labels n1", {"labels": "gpu=1\ngpu.model=x"})
    box.calls()
    box.lib("receive; reconcile_labels n1", {"labels": "gpu.model=x"})
    assert box.calls() == ["k3s kubectl label node n1 --overwrite gpu.model=x gpu-"]


def test_launch_returns_once_the_unit_is_active(box: Box) -> None:
    box.write("etc/rancher/k3s/config.yaml")
    assert box.lib("launch k3s 30") == 0
    calls = box.calls()
    assert sorted(calls) == ["systemctl reset-failed k3s", "systemctl start --no-block k3s", "systemctl stop k3s"]
    assert calls[-1] == "systemctl start --no-block k3s"


def test_launch_gives_up_on_a_restart_loop_and_shows_the_last_fatal_lines(box: Box) -> None:
    box.write("broken")
    box.write("journal", "level=info msg=fine\n" + "".join(f'level=fatal msg="Error {n}"\n' for n in range(9)))
    box.write("units/k3s/restarts", "300\n")  # it looped long before
    assert box.lib("launch k3s 600") == 3
    assert "[K3S-10] machine: found " in box.last.stderr
    assert "again and again" in box.last.stderr
    shown = [line for line in box.last.stderr.splitlines() if line.startswith("level=")]
    assert shown == [f'level=fatal msg="Error {n}"' for n in range(4, 9)]
    assert int(box.read("clock")) < 1100, "long before the limit"


def test_launch_gives_up_at_its_limit(box: Box) -> None:
    box.write("slow")
    assert box.lib("launch k3s 45") == 3
    assert "[K3S-10] machine: found k3s not active after 45 s" in box.last.stderr
    assert int(box.read("clock")) <= 1060


def test_k3s_11_the_unit_holds_no_flag_and_runs_the_guard_first(box: Box) -> None:
    data = {"guard": cluster.read_script("guard")}
    assert box.lib('receive; changed_unit=""; write_unit k3s server; echo "<$changed_unit>"', data) == 0
    unit = box.read("etc/systemd/system/k3s.service").splitlines()
    starts = [line for line in unit if line.startswith("Exec")]
    assert starts[0].startswith("ExecStartPre=/bin/sh ")  # no dash: its failure keeps K3s down
    assert starts[0].endswith("/usr/local/lib/fleet/k3s-guard")
    assert starts[-1].endswith("/usr/local/bin/k3s server")
    assert {"Type=notify", "KillMode=process", "Delegate=yes", "Restart=always", "TimeoutStartSec=0"} <= set(unit)
    assert box.mode("usr/local/lib/fleet/k3s-guard") == 0o755
    assert box.calls() == ["systemctl daemon-reload", "systemctl enable k3s"]
    assert box.lib('receive; changed_unit=""; write_unit k3s server; echo "<$changed_unit>"', data) == 0
    assert box.last.stdout == "<>\n"


@pytest.mark.parametrize("leftover", ["etc/systemd/system/k3s.service.env", "etc/default/k3s"])
def test_k3s_11_flags_in_the_units_environment_are_refused(box: Box, leftover: str) -> None:
    box.write(leftover, "K3S_URL=https://old:6443\n")
    assert box.lib('receive; changed_unit=""; write_unit k3s server', {"guard": "x"}) == 3
    assert "[K3S-11]" in box.last.stderr
    assert leftover in box.last.stderr


# The whole scripts: servers and agents.


def main_cluster() -> Cluster:
    return three_sites().sites["norte"].clusters["north"]


def server_data(sh: Box, mode: str = "member", **changes: str) -> dict[str, str]:
    """Sections for the second server of three."""
    site = three_sites().sites["norte"]
    node = site.guests["north-b"]
    settings_of_node = {
        "name": "north-b",
        "site": "norte",
        "user": "fleet",
        "api": "172.22.64.5",
        "timeout_s": "600",
        "mode": mode,
        "vip": "172.22.64.5",
        "peers": "172.22.64.21 172.22.64.23",
    }
    data = {
        "node": "\n".join(f"{key}={value}" for key, value in settings_of_node.items()),
        "config.yaml": settings.text(settings.server_config(main_cluster(), node)),
        "kube-vip.yaml": "kind: Pod",
        "labels": "rack=none\nzone=north",
        "frozen": "\n".join(settings.FROZEN),
        "guard": cluster.read_script("guard"),
        "renew": cluster.read_script("renew"),
        **release(sh),
    }
    return data | changes


TOKEN = cluster.script("lib", "token")
SERVER = cluster.script("lib", "server")
AGENT = cluster.script("lib", "agent")
DROP_IN = "etc/rancher/k3s/config.yaml.d/50-first-start.yaml"


def grown(sh: Box, **changes: str) -> dict[str, str]:
    """A server that is a member of a healthy cluster, and its data."""
    sh.write("up/172.22.64.5")
    sh.write("up/172.22.64.21")
    sh.write("up/172.22.64.23")
    sh.write("members", "north-a 172.22.64.21\nnorth-b 172.22.64.22\nnorth-c 172.22.64.23\n")
    data = server_data(sh, **changes)
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    sh.calls()
    return data


def test_k3s_03_the_first_server_makes_the_cluster_and_keeps_no_trace_of_having_made_it(sh: Box) -> None:
    sh.write("up/172.22.64.99")
    data = server_data(sh, mode="bootstrap")
    data["node"] = data["node"].replace("vip=172.22.64.5", "vip=")  # nobody answers before the first server does
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    started = sh.read("started.yaml")
    assert "cluster-init: true" in started
    assert "\nserver:" not in started
    assert not sh.has(DROP_IN)
    assert sh.read("etc/rancher/k3s/config.yaml") == data["config.yaml"]
    assert sh.has("var/lib/fleet/member")


def test_k3s_03_a_further_server_joins_through_the_api_address(sh: Box) -> None:
    grown(sh)
    started = sh.read("started.yaml")
    assert 'server: "https://172.22.64.5:6443"' in started
    assert "cluster-init" not in started
    assert not sh.has(DROP_IN)


def test_a_server_joins_a_peer_while_the_api_address_is_silent(sh: Box) -> None:
    sh.write("up/172.22.64.23")
    data = server_data(sh)
    data["node"] = data["node"].replace("timeout_s=600", "timeout_s=9")
    assert sh.run(SERVER, data) == 3  # kube-vip never answers here
    assert "machine: found API address 172.22.64.5 not answering" in sh.last.stderr
    assert 'server: "https://172.22.64.23:6443"' in sh.read("started.yaml")


def test_k3s_06_a_member_that_finds_nobody_never_makes_a_second_cluster(sh: Box) -> None:
    assert sh.run(SERVER, server_data(sh)) == 3
    assert "[K3S-06]" in sh.last.stderr
    assert "systemctl start --no-block k3s" not in sh.calls()
    assert not sh.has("etc/rancher/k3s/config.yaml")


def test_even_a_first_start_joins_when_the_cluster_lives_already(sh: Box) -> None:
    grown(sh, mode="bootstrap")
    assert "cluster-init" not in sh.read("started.yaml")


def test_a_second_run_of_a_server_changes_nothing(sh: Box) -> None:
    data = grown(sh)
    before = sh.files()
    assert sh.run(SERVER, data) == 0
    assert sh.files().keys() == before.keys()
    changed = {name for name, seen in sh.files().items() if seen[:2] != before[name][:2]}
    assert not changed
    touched = {name for name, seen in sh.files().items() if seen != before[name]}
    assert all("/var/lib/fleet/" in name for name in touched)
    assert not [call for call in sh.calls() if re.search(r"systemctl (start|stop|restart|daemon-reload)", call)]


def test_config_and_static_pod_are_for_root_alone(sh: Box) -> None:
    grown(sh)
    assert sh.mode("etc/rancher/k3s/config.yaml") == 0o600
    assert sh.mode("var/lib/rancher/k3s/agent/pod-manifests/kube-vip.yaml") == 0o600


def test_k3s_13_a_token_is_put_in_place_for_root_alone_and_never_printed(box: Box) -> None:
    assert box.run(TOKEN, {"token": SECRET}) == 0, box.last.stderr
    assert box.read("etc/rancher/k3s/token") == f"{SECRET}\n"
    assert box.mode("etc/rancher/k3s/token") == 0o600
    assert box.last.stdout + box.last.stderr == ""
    before = box.files()
    assert box.run(TOKEN, {"token": SECRET}) == 0
    assert box.files() == before
    assert box.calls() == []


@pytest.mark.parametrize("key", ["tls-san", "node-label", "kubelet-arg"])
def test_a_changed_setting_restarts_the_server_once_the_others_are_up(sh: Box, key: str) -> None:
    data = grown(sh)
    data["config.yaml"] = data["config.yaml"].replace(f"{key}:\n", f'{key}:\n  - "new"\n')
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    calls = sh.calls()
    asked = [index for index, call in enumerate(calls) if call.startswith("curl") and "/ping" in call]
    assert any("172.22.64.21" in calls[index] for index in asked)
    assert any("172.22.64.23" in calls[index] for index in asked)
    assert min(asked) < calls.index("systemctl stop k3s") < calls.index("systemctl start --no-block k3s")
    assert '  - "new"' in sh.read("started.yaml")


SAVED = "k3s etcd-snapshot save --name fleet-before-roll"
PRUNED = "k3s etcd-snapshot prune --name fleet-before-roll --snapshot-retention 5"


def another_release(sh: Box) -> dict[str, str]:
    sh.program(sh.root / "mirror/k3s", K3S + "# newer\n")
    return release(sh)


@pytest.mark.parametrize("change", ["config", "binary", "unit"])
def test_bkp_01_etcd_is_saved_once_between_the_quorum_check_and_the_restart(sh: Box, change: str) -> None:
    data = grown(sh)
    if change == "config":
        data["config.yaml"] = data["config.yaml"].replace("tls-san:\n", 'tls-san:\n  - "new"\n')
    elif change == "binary":
        data |= another_release(sh)
    else:
        sh.write("etc/systemd/system/k3s.service", "older\n")
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    calls = sh.calls()
    asked = [index for index, call in enumerate(calls) if "172.22.64.23" in call and "/ping" in call]
    assert calls.count(SAVED) == calls.count(PRUNED) == 1
    assert asked[0] < calls.index(SAVED) < calls.index(PRUNED) < calls.index("systemctl stop k3s")
    assert "snapshots/fleet-before-roll-machine-" in sh.last.stderr
    assert not sh.has("var/lib/fleet/restart-owed")
    fetched = [index for index, call in enumerate(calls) if call.startswith("curl") and call.endswith("/v1/k3s")]
    assert not fetched or calls.index(SAVED) < fetched[0], "the old binary makes the snapshot"


@pytest.mark.parametrize("fault", ["full", "elsewhere"])
@pytest.mark.parametrize("change", ["config", "binary", "unit"])
def test_bkp_01_no_server_restarts_without_its_snapshot_and_the_next_run_tries_again(
    sh: Box, fault: str, change: str
) -> None:
    data = grown(sh)
    sh.write(fault)
    if change == "config":
        data["config.yaml"] = data["config.yaml"].replace("tls-san:\n", 'tls-san:\n  - "new"\n')
    elif change == "binary":
        data |= another_release(sh)
    else:
        sh.write("etc/systemd/system/k3s.service", "older\n")
    before = sh.files()
    assert sh.run(SERVER, data) == 3
    assert "[BKP-01] machine: found no etcd snapshot" in sh.last.stderr
    if fault == "full":
        assert "no space left" in sh.last.stderr
        assert "Unknown flag" not in sh.last.stderr
    assert not [call for call in sh.calls() if "systemctl stop" in call]
    if change != "unit":
        assert sh.files() == before
    (sh.root / fault).unlink()
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    calls = sh.calls()
    assert calls.index(SAVED) < calls.index("systemctl stop k3s")


def test_a_roll_that_was_interrupted_is_taken_up_again(sh: Box) -> None:
    data = grown(sh) | another_release(sh)
    sh.write("slow")  # it never becomes active, as if the connection had broken
    assert sh.run(SERVER, data) == 3
    (sh.root / "slow").unlink()
    sh.write("units/k3s/active", "active\n")  # the old one goes on
    assert sh.has("var/lib/fleet/restart-owed")
    sh.calls()
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    assert "systemctl stop k3s" in sh.calls()
    assert not sh.has("var/lib/fleet/restart-owed")
    assert sh.run(SERVER, data) == 0
    assert not [call for call in sh.calls() if "systemctl stop" in call or "etcd-snapshot" in call]


def test_k3s_15_a_new_binary_is_not_even_installed_while_a_peer_is_down(sh: Box) -> None:
    data = grown(sh) | another_release(sh)
    (sh.root / "up/172.22.64.23").unlink()
    before = sh.files()
    assert sh.run(SERVER, data) == 3
    assert "[K3S-15]" in sh.last.stderr
    assert sh.files() == before, "else the next run would see no change and not restart"
    assert SAVED not in sh.calls()


def test_k3s_15_a_server_does_not_restart_while_a_peer_is_down(sh: Box) -> None:
    data = grown(sh)
    (sh.root / "up/172.22.64.23").unlink()
    before = sh.read("etc/rancher/k3s/config.yaml")
    data["config.yaml"] = data["config.yaml"].replace("tls-san:\n", 'tls-san:\n  - "new"\n')
    assert sh.run(SERVER, data) == 3
    assert "[K3S-15] machine: found server north-c (172.22.64.23) not answering" in sh.last.stderr
    assert not [call for call in sh.calls() if "systemctl st" in call]
    assert sh.read("etc/rancher/k3s/config.yaml") == before, "else the next run would see no change and not restart"


def test_k3s_15_a_server_does_not_restart_while_its_own_api_is_deaf(sh: Box) -> None:
    data = grown(sh)
    sh.write("deaf")
    data["config.yaml"] = data["config.yaml"].replace("tls-san:\n", 'tls-san:\n  - "new"\n')
    assert sh.run(SERVER, data) == 3
    assert "[K3S-15]" in sh.last.stderr
    assert not [call for call in sh.calls() if "systemctl st" in call]


def test_a_stopped_server_is_started_without_asking_the_others(sh: Box) -> None:
    data = grown(sh)
    (sh.root / "units/k3s/active").unlink()
    (sh.root / "up/172.22.64.23").unlink()
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    assert "systemctl start --no-block k3s" in sh.calls()


def test_k3s_09_a_changed_cidr_stops_a_living_server_untouched(sh: Box) -> None:
    data = grown(sh)
    before = sh.files()
    data["config.yaml"] = data["config.yaml"].replace("10.43.0.0/16", "10.99.0.0/16")
    assert sh.run(SERVER, data) == 3
    assert "[K3S-09]" in sh.last.stderr
    assert sh.files() == before
    assert not [call for call in sh.calls() if call.startswith("systemctl")]


def test_an_interrupted_first_start_goes_on_where_it_was(sh: Box) -> None:
    for peer in ("5", "21", "23"):
        sh.write(f"up/172.22.64.{peer}")
    sh.write("broken")
    data = server_data(sh)
    assert sh.run(SERVER, data) == 3
    (sh.root / "broken").unlink()
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    assert not sh.has(DROP_IN)
    assert sh.read("etc/rancher/k3s/config.yaml") == data["config.yaml"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("unready", "[K3S-10] machine: found /readyz not ok"), ("learner", "[K3S-10] machine: found no vote in etcd")],
)
def test_a_server_is_done_only_when_it_is_ready_and_votes(sh: Box, fault: str, words: str) -> None:
    for peer in ("5", "21", "23"):
        sh.write(f"up/172.22.64.{peer}")
    sh.write(fault)
    assert sh.run(SERVER, server_data(sh)) == 3
    assert words in sh.last.stderr
    assert not sh.has("var/lib/fleet/member")


def test_k3s_03_sqlite_is_never_turned_into_etcd(sh: Box) -> None:
    sh.write("var/lib/rancher/k3s/server/db/state.db")
    before = sh.files()
    assert sh.run(SERVER, server_data(sh)) == 3
    assert "[K3S-03]" in sh.last.stderr
    assert sh.files() == before


def test_k3s_11_a_node_is_server_or_agent_and_never_both(sh: Box) -> None:
    sh.write("etc/systemd/system/k3s-agent.service")
    assert sh.run(SERVER, server_data(sh)) == 3
    assert "[K3S-11]" in sh.last.stderr
    (sh.root / "etc/systemd/system/k3s-agent.service").rename(sh.root / "etc/systemd/system/k3s.service")
    assert sh.run(AGENT, agent_data(sh)) == 3
    assert "[K3S-11]" in sh.last.stderr


def test_a_cluster_without_api_address_has_no_static_pod_for_it(sh: Box) -> None:
    data = server_data(sh, mode="bootstrap", **{"kube-vip.yaml": ""})
    data["node"] = data["node"].replace("vip=172.22.64.5", "vip=")
    sh.write("var/lib/rancher/k3s/agent/pod-manifests/kube-vip.yaml", "old\n")
    assert sh.run(SERVER, data) == 0, sh.last.stderr
    assert not sh.has("var/lib/rancher/k3s/agent/pod-manifests/kube-vip.yaml")


def agent_data(sh: Box) -> dict[str, str]:
    site = three_sites().sites["norte"]
    config = settings.agent_config(main_cluster(), site.guests["north-d"], "172.22.64.5")
    return {
        "node": "name=north-d\napi=172.22.64.5\ntimeout_s=600",
        "config.yaml": settings.text(config),
        "frozen": "\n".join(settings.FROZEN),
        "guard": cluster.read_script("guard"),
        "renew": cluster.read_script("renew"),
        **release(sh),
    }


def test_an_agent_starts_once_and_a_second_run_changes_nothing(sh: Box) -> None:
    sh.write("up/172.22.64.5")
    data = agent_data(sh)
    assert sh.run(AGENT, data) == 0, sh.last.stderr
    assert "systemctl start --no-block k3s-agent" in sh.calls()
    assert sh.mode("etc/rancher/k3s/config.yaml") == 0o600
    before = sh.files()
    assert sh.run(AGENT, data) == 0, sh.last.stderr
    assert sh.files() == before
    assert not [call for call in sh.calls() if re.search(r"systemctl (start|stop|daemon-reload)", call)]


def test_an_agent_waits_for_the_api_and_then_says_so(sh: Box) -> None:
    assert sh.run(AGENT, agent_data(sh)) == 3
    assert "[K3S-10] machine: found no answer of the API at 172.22.64.5" in sh.last.stderr
    assert not sh.has("etc/rancher/k3s")


def test_an_agents_labels_wait_until_it_is_registered(sh: Box) -> None:
    sh.program(sh.root / "usr/local/bin/k3s", K3S)
    data = {"node": "name=north-d\ntimeout_s=20", "labels": "a=1"}
    script = cluster.script("lib", "agent_labels")
    assert sh.run(script, data) == 0
    assert sh.calls()[-1] == "k3s kubectl label node north-d --overwrite a=1"
    assert sh.read("var/lib/fleet/agents/north-d/node-labels") == "a=1\n"
    sh.write("unregistered")
    assert sh.run(script, data) == 3
    assert "[K3S-10]" in sh.last.stderr


def test_identity_prints_cluster_uid_and_ca_hash(sh: Box) -> None:
    sh.program(sh.root / "usr/local/bin/k3s", K3S)
    sh.write("var/lib/rancher/k3s/server/tls/server-ca.crt", "PEM\n")
    assert sh.run(cluster.script("lib", "identity")) == 0
    digest = sh.sha256("var/lib/rancher/k3s/server/tls/server-ca.crt")
    assert sh.last.stdout == f'{{"uid": "uid-1", "ca_hash": "{digest}"}}\n'


def test_credentials_are_a_service_account_whose_token_does_not_expire(sh: Box) -> None:
    sh.program(sh.root / "usr/local/bin/k3s", K3S)
    assert sh.run(cluster.script("lib", "credentials")) == 0
    assert sh.last.stdout == '{"ca": "Q0E=", "token": "VE9L"}'
    assert "type: kubernetes.io/service-account-token" in sh.read("applied")
    sh.write("tokenless")
    assert sh.run(cluster.script("lib", "credentials")) == 3
    assert "[K3S-13]" in sh.last.stderr


VM_DATA = {
    "node": "user=fleet\nname=x",
    "modules": "overlay\nvxlan",
    "sysctl": "net.ipv4.ip_forward = 1",
    "timesyncd": "[Time]\nNTP=a b",
    "operators": "ssh-ed25519 AAAA ana",
}


def test_a_vm_gets_modules_sysctls_time_and_operators_and_a_second_run_changes_nothing(sh: Box) -> None:
    script = cluster.script("lib", "prepare_vm")
    assert sh.run(script, VM_DATA) == 0, sh.last.stderr
    assert sh.read("etc/modules-load.d/fleet-k3s.conf") == "overlay\nvxlan\n"
    assert sh.read("etc/sysctl.d/90-fleet-k3s.conf") == "net.ipv4.ip_forward = 1\n"
    assert sh.read("etc/systemd/timesyncd.conf.d/fleet.conf") == "[Time]\nNTP=a b\n"
    assert sh.read("home/.ssh/authorized_keys2") == "ssh-ed25519 AAAA ana\n"
    assert sh.mode("home/.ssh/authorized_keys2") == 0o600
    assert "sysctl -q --system" in sh.calls()
    before = sh.files()
    assert sh.run(script, VM_DATA) == 0
    assert sh.files() == before
    assert sh.calls() == ["modprobe overlay", "modprobe vxlan"]


def container(sh: Box) -> dict[str, str]:
    """A container whose host is set up, and what its script is told."""
    sh.write("dev/kmsg")
    sh.write("dev/nvidia0")
    sh.write("proc/self/attr/current", "unconfined\n")
    sh.write("proc/self/status", "CapInh:\t0\nCapEff:\t000001ffffffffff\n")
    sh.write("proc/sys/kernel/x")
    sh.write("proc/sys/fs/inotify/max_user_instances", "8192\n")
    sh.write("sys/module/overlay/x")
    sh.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
    return {
        "node": "site=norte\nname=x",
        "devices": f"{sh.root}/dev/nvidia0",
        "modules": "overlay",
        "minimums": "fs.inotify.max_user_instances=8192",
    }


VERIFY = cluster.script("lib", "verify_lxc")


def test_lxc_06_a_container_on_a_prepared_host_passes(sh: Box) -> None:
    assert sh.run(VERIFY, container(sh)) == 0, sh.last.stderr
    assert sh.calls() == [], "a check changes nothing"


def test_k3s_finds_shared_mounts_in_a_container() -> None:
    assert "ExecStartPre=-/bin/mount --make-rshared /" in cluster.read_script("lib")


def test_lxc_06_every_fault_of_the_host_is_reported_at_once_and_nothing_changes(sh: Box) -> None:
    data = container(sh)
    for gone in ("dev/kmsg", "dev/nvidia0", "sys/module/overlay/x", "sys/fs/cgroup/cgroup.controllers"):
        (sh.root / gone).unlink()
    (sh.root / "sys/module/overlay").rmdir()
    sh.write("proc/self/attr/current", "lxc-100_</var/lib/lxc>\n")
    sh.write("proc/self/status", "CapEff:\t00000000a80425fb\n")
    sh.write("proc/sys/fs/inotify/max_user_instances", "128\n")
    assert sh.run(VERIFY, data) == 3
    faults = sh.last.stderr.splitlines()
    assert all(fault.startswith("[LXC-06] machine: ") and "./fleet runbook norte lxc-host" in fault for fault in faults)
    for words in ("kmsg", "nvidia0", "AppArmor", "capabilities", "overlay", "= 128", "cpuset", "pids"):
        assert any(words in fault for fault in faults), words
    assert sh.calls() == []


RENEW = f"set -- k3s /var/lib/rancher/k3s/server/tls/client-admin.crt\n{cluster.read_script('renew')}"
CERTIFICATE = "var/lib/rancher/k3s/server/tls/client-admin.crt"


def aged(sh: Box, days: int) -> None:
    sh.write(CERTIFICATE)
    then = time.time() - days * 86400
    os.utime(sh.root / CERTIFICATE, (then, then))
    sh.program(sh.root / "usr/local/bin/k3s", "#!/bin/sh\necho 172.22.64.21 172.22.64.22\n")


def test_a_young_certificate_restarts_nothing(sh: Box) -> None:
    aged(sh, 200)
    assert sh.run(RENEW) == 0
    assert "restart" not in sh.calls()


def test_an_old_certificate_restarts_k3s_while_every_server_is_up(sh: Box) -> None:
    aged(sh, 300)
    sh.write("up/172.22.64.21")
    sh.write("up/172.22.64.22")
    assert sh.run(RENEW) == 0, sh.last.stderr
    assert "systemctl restart --no-block k3s" in sh.calls()


def test_an_old_certificate_waits_for_a_server_that_is_down_and_says_so(sh: Box) -> None:
    aged(sh, 300)
    sh.write("up/172.22.64.21")
    assert sh.run(RENEW) == 1
    assert "restart" not in sh.calls()
    assert "172.22.64.22 is down" in sh.last.stderr


def test_two_servers_never_renew_on_the_same_day() -> None:
    big = main_cluster()
    days = [cluster.renewal_day(big, node) for node in big.servers]
    assert len(set(days)) == len(days)


# Nodes that were there before the program

RECOGNISE = cluster.script("lib", "recognise")
UNIT = "etc/systemd/system/k3s.service"
STARTED = """[Unit]
Description=Lightweight Kubernetes
[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s \\
    server \\
\t'--cluster-cidr=10.41.0.0/16' \\
\t'--service-cidr' \\
\t'10.141.0.0/16' \\
\t'--disable=traefik' \\
\t'--disable' \\
\t'servicelb' \\
\t'--token=hunter2' \\

[Install]
WantedBy=multi-user.target
"""
FOUND = {
    "role": "server",
    "version": "v1.32.13+k3s1",
    "nodes": "machine other",
    "joining": "third",
    "datastore": "etcd",
    "cluster-cidr": "10.41.0.0/16",
    "service-cidr": "10.141.0.0/16",
    "flannel-backend": "vxlan",
    "disable-network-policy": "false",
    "disable-kube-proxy": "false",
    "secrets-encryption": "false",
    "disable": "servicelb,traefik",
}


def old_server(box: Box, unit: str = STARTED, config: str = 'token: "hunter2"\n') -> None:
    """A server that people made: flags in its unit, a token in its config file."""
    box.program(box.root / "usr/local/bin/k3s", K3S)
    box.write(UNIT, unit)
    box.write("etc/rancher/k3s/config.yaml", config)
    box.write("units/k3s/active", "active\n")
    (box.root / "var/lib/rancher/k3s/server/db/etcd/member/wal").mkdir(parents=True)
    box.write("nodes", "machine other ")


def told(**changes: str) -> dict[str, str]:
    wanted = FOUND | {key.replace("_", "-"): value for key, value in changes.items()}
    node = "name=machine\nsite=somewhere\ntimeout_s=10"
    return {"node": node, "expected": "\n".join(f"{key}={value}" for key, value in wanted.items())}


def test_a_server_that_is_what_its_document_says_is_recognised_and_left_alone(box: Box) -> None:
    old_server(box)
    before = box.files()
    assert box.run(RECOGNISE, told()) == 0, box.last.stderr
    assert json.loads(box.last.stdout) == {
        "role": "server",
        "version": "v1.32.13+k3s1",
        "datastore": "etcd",
        "cluster_cidr": "10.41.0.0/16",
        "service_cidr": "10.141.0.0/16",
        "flannel_backend": "vxlan",
        "secrets_encryption": "false",
        "disable": ["servicelb", "traefik"],
        "nodes": ["machine", "other"],
    }
    assert box.files() == before
    assert all(call.startswith(("k3s --version", "k3s kubectl get ")) for call in box.calls())
    assert "hunter2" not in box.last.stdout + box.last.stderr


def test_a_node_that_the_program_has_joined_since_is_no_stranger(sh: Box) -> None:
    old_server(sh)
    sh.write("nodes", "machine other third ")
    assert sh.run(RECOGNISE, told()) == 0, sh.last.stderr


@pytest.mark.parametrize(
    ("rule", "words", "changes"),
    [
        ("K3S-10", "K3s v1.32.13+k3s1; expected v1.31.5+k3s1", {"version": "v1.31.5+k3s1"}),
        ("K3S-03", "datastore etcd; expected sqlite", {"datastore": "sqlite"}),
        ("K3S-09", "cluster-cidr 10.41.0.0/16; expected 10.40.0.0/16", {"cluster_cidr": "10.40.0.0/16"}),
        ("K3S-09", "service-cidr 10.141.0.0/16; expected 10.140.0.0/16", {"service_cidr": "10.140.0.0/16"}),
        ("K3S-10", "flannel-backend vxlan; expected none", {"flannel_backend": "none"}),
        ("K3S-10", "disable-network-policy false; expected true", {"disable_network_policy": "true"}),
        ("K3S-10", "disable-kube-proxy false; expected true", {"disable_kube_proxy": "true"}),
        ("K3S-10", "secrets-encryption false; expected true", {"secrets_encryption": "true"}),
        ("K3S-10", "disable servicelb,traefik; expected traefik", {"disable": "traefik"}),
        ("K3S-03", "no node gone; expected every node", {"nodes": "machine other gone"}),
        ("K3S-03", "a node other; expected only nodes", {"nodes": "machine"}),
    ],
)
def test_what_differs_from_the_document_stops_with_its_rule(
    sh: Box, rule: str, words: str, changes: dict[str, str]
) -> None:
    old_server(sh)
    before = sh.files()
    assert sh.run(RECOGNISE, told(**changes)) == 3
    (line,) = sh.last.stderr.splitlines()
    assert line.startswith(f"[{rule}] machine: found {words}")
    assert line.count("; ") >= 2, "it says what to do"
    assert sh.last.stdout == ""
    assert sh.files() == before


def test_every_difference_is_told_at_once(sh: Box) -> None:
    old_server(sh)
    assert sh.run(RECOGNISE, told(version="v1", cluster_cidr="10.40.0.0/16", secrets_encryption="true")) == 3
    assert [line[1:7] for line in sh.last.stderr.splitlines()] == ["K3S-10", "K3S-09", "K3S-10"]


@pytest.mark.parametrize(
    ("unit", "config", "flag"),
    [
        ("server --flannel-backend=host-gw", "", "flannel-backend host-gw"),
        ("server", "flannel-backend: host-gw # as ever\n", "flannel-backend host-gw"),
        ("server --flannel-backend vxlan", "flannel-backend: host-gw\n", ""),
        ("server --cluster-domain=lab.local", "", "cluster-domain lab.local"),
        ("server", "cluster-dns: 10.141.0.53\n", "cluster-dns 10.141.0.53"),
        ("server --egress-selector-mode=pod", "", "egress-selector-mode pod"),
        ("server --disable-helm-controller", "", "disable-helm-controller true"),
        ("server", 'datastore-endpoint: "mysql://x"\n', "datastore external"),
    ],
)
def test_flags_are_found_wherever_they_stand(sh: Box, unit: str, config: str, flag: str) -> None:
    ranges = "cluster-cidr: 10.41.0.0/16\nservice-cidr: 10.141.0.0/16\ndisable: [traefik, servicelb]\n"
    old_server(sh, f"[Service]\nExecStart=/usr/local/bin/k3s {unit}\n", ranges + config)
    assert sh.run(RECOGNISE, told()) == (3 if flag else 0), sh.last.stderr
    assert flag in sh.last.stderr
    assert len(sh.last.stderr.splitlines()) == bool(flag)


def test_a_drop_in_wins_over_the_config_file_and_an_override_over_the_unit(box: Box) -> None:
    old_server(box, STARTED, "cluster-cidr: 10.9.0.0/16\ndisable:\n- traefik\n")
    box.write(
        "etc/rancher/k3s/config.yaml.d/10-more.yaml", "disable+:\n  - metrics-server\nservice-cidr: '10.8.0.0/16'\n"
    )
    box.write(
        f"{UNIT}.d/override.conf", "[Service]\nExecStart=\nExecStart=/usr/local/bin/k3s server --secrets-encryption\n"
    )
    wanted = told(
        cluster_cidr="10.9.0.0/16",
        service_cidr="10.8.0.0/16",
        disable="metrics-server,traefik",
        secrets_encryption="true",
    )
    assert box.run(RECOGNISE, wanted) == 0, box.last.stderr


def test_sqlite_is_seen_for_what_it_is(sh: Box) -> None:
    old_server(sh)
    shutil.rmtree(sh.root / "var/lib/rancher/k3s/server/db/etcd")
    sh.write("var/lib/rancher/k3s/server/db/state.db")
    assert sh.run(RECOGNISE, told()) == 3
    assert "[K3S-03] machine: found datastore sqlite; expected etcd" in sh.last.stderr


@pytest.mark.parametrize("fault", ["stopped", "agent", "deaf"])
def test_a_server_that_does_not_run_as_one_is_not_recognised(sh: Box, fault: str) -> None:
    old_server(sh)
    if fault == "deaf":
        sh.write("deaf")
    elif fault == "agent":
        (sh.root / UNIT).unlink()
        sh.write("etc/systemd/system/k3s-agent.service")
    else:
        (sh.root / "units/k3s/active").unlink()
    assert sh.run(RECOGNISE, told()) == 3
    assert ("[K3S-10]" if fault == "deaf" else "[K3S-11]") in sh.last.stderr


def test_an_agent_is_recognised_by_its_role_and_version_alone(sh: Box) -> None:
    sh.program(sh.root / "usr/local/bin/k3s", K3S)
    sh.write("etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent\n")
    sh.write("units/k3s-agent/active", "active\n")
    data = {"node": "name=machine\nsite=s", "expected": "role=agent\nversion=v1.32.13+k3s1\nnodes=machine\njoining="}
    assert sh.run(RECOGNISE, data) == 0, sh.last.stderr
    assert json.loads(sh.last.stdout) == {"role": "agent", "version": "v1.32.13+k3s1", "datastore": "none"}


JOIN_TOKEN = cluster.script("lib", "join_token")


def test_k3s_13_the_join_token_is_printed_to_standard_output_alone(sh: Box) -> None:
    sh.write("var/lib/rancher/k3s/server/token", f"{SECRET}\n")
    before = sh.files()
    assert sh.run(JOIN_TOKEN) == 0
    assert (sh.last.stdout, sh.last.stderr) == (f"{SECRET}\n", "")
    assert sh.files() == before


@pytest.mark.parametrize("text", [None, "", "hunter2\n", "K10aa::node:hunter2\n"])
def test_k3s_13_what_is_no_servers_token_joins_nobody_and_is_not_shown(sh: Box, text: str | None) -> None:
    if text is not None:
        sh.write("var/lib/rancher/k3s/server/token", text)
    assert sh.run(JOIN_TOKEN) == 3
    assert "[K3S-13] machine: found" in sh.last.stderr
    assert "hunter2" not in sh.last.stderr + sh.last.stdout


def frozen_beside(box: Box, wanted: str) -> int:
    """The check of what never changes, on a node that people made."""
    return box.lib("receive; frozen", {"frozen": "\n".join(settings.FROZEN), "config.yaml": wanted})


def test_k3s_09_a_server_that_people_made_is_taken_over_with_the_flags_of_its_unit(box: Box) -> None:
    old_server(box, config="")
    kept = 'cluster-cidr: "10.41.0.0/16"\nservice-cidr: "10.141.0.0/16"\nnode-name: "machine"\nnode-ip: "10.0.0.1"\n'
    assert frozen_beside(box, kept) == 0, box.last.stderr
    assert frozen_beside(box, f'{kept}flannel-backend: "vxlan"\ndisable-kube-proxy: false\n') == 0, box.last.stderr
    assert frozen_beside(box, kept.replace("10.41", "10.40")) == 3
    assert "change of cluster-cidr from 10.41.0.0/16 to" in box.last.stderr
    assert frozen_beside(box, f"{kept}disable-kube-proxy: true\n") == 3
    assert "change of disable-kube-proxy from nothing to true" in box.last.stderr


def test_k3s_14_a_server_without_ranges_has_those_of_k3s(sh: Box) -> None:
    old_server(sh, "[Service]\nExecStart=/usr/local/bin/k3s server --disable=traefik,servicelb\n")
    assert sh.run(RECOGNISE, told(cluster_cidr="10.42.0.0/16", service_cidr="10.43.0.0/16")) == 0, sh.last.stderr
