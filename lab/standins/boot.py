"""What happens between power-on and process 1: the node's file system is put together and becomes its root.

Runs as the first process of the node's own mount, pid and uts namespaces; uses only binds, so it needs no device
nodes and works for an ordinary user inside a user namespace. The node sees the machine's programs read-only, its own
disk, and nothing else of the machine. Settings of the kernel that hold for the whole machine are covered by files of
the node's own: a script may write them, and the machine keeps its values.
"""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 1 << 14, 1 << 18, 1 << 21
MNT_DETACH = 2
FLAGS_TO_KEEP = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC, os.ST_NOATIME: MS_NOATIME,
                 os.ST_NODIRATIME: MS_NODIRATIME, os.ST_RELATIME: MS_RELATIME}  # fmt: skip

MACHINE_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
DISK = {"etc": "etc", "var": "var", "root": "root", "home": "home", "opt": "opt", "usr-local": "usr/local",
        "tmp": "tmp", "srv": "srv"}  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# As on a host that was prepared by the runbook.
KERNEL_SETTINGS = {
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "fs/inotify/max_user_instances": "8192",
    "fs/inotify/max_user_watches": "524288",
}
MACHINE_WIDE = ("kernel", "vm", "fs")  # Below /proc/sys; "net" belongs to the node's own network.
LIVE_SETTINGS = ("kernel/random", "kernel/hostname", "kernel/domainname")
MACHINE_WIDE_NET = {
    "net/netfilter/nf_conntrack_max": "262144",
    "net/nf_conntrack_max": "262144",
    "net/bridge/bridge-nf-call-iptables": "1",
    "net/bridge/bridge-nf-call-ip6tables": "1",
}
KERNEL_MODULES = ("overlay", "br_netfilter", "nf_conntrack", "iptable_nat", "iptable_filter", "vxlan")
LAB = "opt/fleet-lab"

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises OSError for a refused system call."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    encoded = [text.encode() or None for text in (source, str(target), kind)]
    check(libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() or None), f"mount {source} on {target}")


def bind(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Shows `source` at `target`, which is made if need be."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(source), target, flags=MS_BIND | MS_REC)
    if read_only:
        # A user namespace may not drop what the machine's own mount forbids, so those flags are repeated.
        present = os.statvfs(target).f_flag
        kept = sum(flag for bit, flag in FLAGS_TO_KEEP.items() if present & bit)
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def build_root(root: Path, spec: dict[str, Any]) -> None:
    """Everything but the kernel's own file systems."""
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755,size=16m")
    for name in MACHINE_DIRECTORIES:
        source = Path("/", name)
        if source.is_symlink():
            (root / name).symlink_to(source.readlink())
        elif source.is_dir():
            bind(source, root / name, read_only=True)
    for name, place in DISK.items():
        bind(Path(spec["disk"], name), root / place)
    for name in ("run", "dev", "proc", "sys", "mnt", "media"):
        (root / name).mkdir()
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=256m")
    (root / "run/lock").mkdir()
    (root / LAB).mkdir(parents=True, exist_ok=True)
    mount("tmpfs", root / LAB, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    bind(Path(spec["toolchain"]), root / LAB / "bin", read_only=True)
    (root / LAB / "python").symlink_to(spec["python"])
    (root / LAB / "project").symlink_to(spec["project"])
    for path in sorted(spec["binds"]):
        bind(Path(path), root / path.lstrip("/"), read_only=True)


def build_devices(root: Path, devices: list[str]) -> None:
    """/dev. A device that the guest's config passes through is a character device that reads as empty."""
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        bind(Path("/dev", name), dev / name)
    for path in devices:
        bind(Path("/dev/null"), root / path.lstrip("/"))
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
             "stderr": "/proc/self/fd/2", "console": "null"}  # fmt: skip
    for name, place in links.items():
        if not (dev / name).exists():
            (dev / name).symlink_to(place)


def build_kernel_views(root: Path, devices: list[str]) -> None:
    """/proc and /sys."""
    proc, sysfs = root / "proc", root / "sys"
    mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(proc / "sys", proc / "sys", read_only=True)
    bind(proc / "sys/net", proc / "sys/net")
    # The bind above shows the read-only mount below it; what belongs to this network namespace is writable again.
    mount("", proc / "sys/net", flags=MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME)
    for name in MACHINE_WIDE:
        cover_settings(proc / "sys", name)
    own = root / "run/kernel-settings"
    for key, value in MACHINE_WIDE_NET.items():
        if (proc / "sys" / key).exists():
            (own / key).parent.mkdir(parents=True, exist_ok=True)
            (own / key).write_text(f"{value}\n")
            bind(own / key, proc / "sys" / key)
    if (proc / "sysrq-trigger").exists():
        bind(Path("/dev/null"), proc / "sysrq-trigger")
    mount("sysfs", sysfs, "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if (sysfs / "module").is_dir():
        mount("tmpfs", sysfs / "module", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        gpu = ("nvidia", "nvidia_uvm") if any("nvidia" in path for path in devices) else ()
        for name in (*KERNEL_MODULES, *gpu):
            (sysfs / "module" / name).mkdir()
    if (sysfs / "fs/cgroup").is_dir():
        mount("tmpfs", sysfs / "fs/cgroup", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        (sysfs / "fs/cgroup/cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")


def cover_settings(settings: Path, name: str) -> None:
    """Lays a copy that the node may write over one folder of machine-wide settings."""
    values = {path.relative_to(settings): read(path) for path in (settings / name).rglob("*") if path.is_file()}
    mount("tmpfs", settings / name, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=4m")
    for key, value in [*values.items(), *((Path(key), f"{text}\n") for key, text in KERNEL_SETTINGS.items())]:
        if value is not None and key.parts[0] == name:
            (settings / key).parent.mkdir(parents=True, exist_ok=True)
            (settings / key).write_text(value)
    for live in LIVE_SETTINGS:
        if live.startswith(f"{name}/"):
            source = Path("/proc/sys", live)
            bind(source, settings / live, read_only=True)


def read(path: Path) -> str | None:
    """None where even root may not look."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def enter(root: Path) -> None:
    """Makes `root` the root; the machine's file system is gone from here on."""
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), f"pivot_root {root}")
    check(libc.umount2(b".", MNT_DETACH), "umount the machine's root")
    os.chdir("/")


def main() -> None:
    """`boot.py SPEC READY_FD`: SPEC is JSON with root, disk, hostname, devices, binds, toolchain, project, python."""
    spec, ready = json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    root = Path(spec["root"])
    try:
        socket.sethostname(spec["hostname"])
        build_root(root, spec)
        build_devices(root, spec["devices"])
        build_kernel_views(root, spec["devices"])
        enter(root)
    except OSError as error:
        ready.send(f"error: {error.filename or 'boot'}: {error.strerror}".encode())
        sys.exit(1)
    descriptor = ready.detach()
    os.set_inheritable(descriptor, True)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                   "PYTHONPATH": spec["project"], "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    argv = [spec["python"], "-PsS", "-m", "lab.standins.init", str(descriptor)]
    os.execve(spec["python"], argv, environment)


if __name__ == "__main__":
    main()
