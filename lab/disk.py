"""The disk of a node: the folders that survive its reboots and are gone when the guest is deleted.

`/etc` begins with the few files of the machine that its programs need to run; nothing personal or secret is copied.
"""

import shutil
import uuid
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Protocol

import asyncssh

HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
PLACES = ("etc", "var", "usr-local", "root", "home", "opt", "srv", "tmp")
ETC_FROM_MACHINE = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "default/locale", "ethertypes", "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "localtime", "login.defs", "mime.types", "nsswitch.conf", "os-release", "pki", "profile",
    "protocols", "rpc", "services", "shells", "ssl", "terminfo", "timezone",
)  # fmt: skip
SYSTEM_UID_LIMIT = 1000
NOBODY = 65534
DIRECTORIES = (
    "etc/systemd/system", "etc/default", "etc/ssh", "etc/sysctl.d", "etc/modules-load.d", "etc/apt", "var/lib",
    "var/log", "var/cache", "var/spool", "var/tmp", "usr-local/bin", "usr-local/sbin", "usr-local/lib",
    "usr-local/share",
)  # fmt: skip


class HasDisk(Protocol):
    """What a disk is made for."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> IPv4Interface: ...
    @property
    def user(self) -> str: ...
    @property
    def dns(self) -> "tuple[str, ...] | list[str]": ...


def prepare(disk: Path, guest: HasDisk, leaf_programs: list[str]) -> None:
    """Makes the disk if it is new; sets in any case what the guest's config sets at each boot, and empties /tmp."""
    if not (disk / HOST_KEY).exists():
        _install(disk, guest)
    shutil.rmtree(disk / "tmp", ignore_errors=True)
    (disk / "tmp").mkdir()
    (disk / "tmp").chmod(0o1777)
    etc = disk / "etc"
    (etc / "hostname").write_text(f"{guest.name}\n")
    hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
    (etc / "hosts").write_text(f"{hosts}{guest.address.ip} {guest.name}\n")
    (etc / "resolv.conf").write_text("".join(f"nameserver {server}\n" for server in guest.dns))
    sbin = disk / "usr-local/sbin"
    for path in sbin.iterdir():
        if path.is_symlink() and "/lab/standins/sbin/" in str(path.readlink()):
            path.unlink()
    for name in leaf_programs:
        link = sbin / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/opt/fleet-lab/project/lab/standins/sbin/{name}")


def wipe(disk: Path) -> None:
    """The disk is lost."""
    if disk.exists():
        shutil.rmtree(disk)


def home(user: str) -> str:
    """The home directory of a user of a node."""
    return "/root" if user == "root" else f"/home/{user}"


def _install(disk: Path, guest: HasDisk) -> None:
    for place in (*PLACES, *DIRECTORIES):
        (disk / place).mkdir(parents=True, exist_ok=True)
    etc = disk / "etc"
    for name in ETC_FROM_MACHINE:
        source, target = Path("/etc", name), etc / name
        if source.is_symlink() and not source.is_dir():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("private", "*.key"))
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (etc / "passwd").write_text(_accounts(Path("/etc/passwd"), guest.user))
    (etc / "group").write_text(_accounts(Path("/etc/group"), ""))
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "mtab").symlink_to("/proc/self/mounts")
    (disk / "var/run").symlink_to("/run")
    (disk / "var/lock").symlink_to("/run/lock")
    (disk / "var/tmp").chmod(0o1777)
    (disk / "root").chmod(0o700)
    (disk / home(guest.user).lstrip("/")).mkdir(parents=True, exist_ok=True)
    (etc / "ld.so.cache").touch()
    # Last, because its presence says that the disk is complete.
    key = asyncssh.generate_private_key("ssh-ed25519", comment=guest.name)
    key.write_public_key(str(disk / f"{HOST_KEY}.pub"))
    partial = disk / f"{HOST_KEY}.partial"
    key.write_private_key(str(partial))
    partial.chmod(0o600)
    partial.rename(disk / HOST_KEY)


def _accounts(source: Path, user: str) -> str:
    """The machine's system accounts; people stay out. The guest's user is root by another name, since an ordinary
    user's lab has no second id to give to files.
    """
    kept = []
    for line in source.read_text().splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isdecimal() and fields[0] != user:
            number = int(fields[2])
            if number < SYSTEM_UID_LIMIT or number == NOBODY:
                kept.append(line)
    if user and user != "root":
        kept.append(f"{user}:x:0:0::{home(user)}:/bin/bash")
    return "\n".join(kept) + "\n"
