"""Takes a program from a release that somebody else built, when its SHA-256 is known beforehand.

Which releases: the pinned ones that carry a checksum, and those of the user's own file, for sites with a mirror:

    # ${XDG_CONFIG_HOME:-~/.config}/fleet/toolchain.toml
    [kubectl]
    url = "https://mirror.example/kubernetes/v1.32.13/kubectl"
    sha256 = "64 hex digits of the file behind url"
    member = "client/bin/kubectl"      # only where the file is a tar archive

Left out: signatures, and any attempt to guess a checksum from beside the file: that would verify nothing.
"""

import hashlib
import os
import re
import shutil
import tarfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.toolchain.cache import ToolchainError
from lab.toolchain.pins import PROGRAMS, Program, architecture

_TIMEOUT_S = 30  # without a byte
_LARGEST = 2 * 2**30  # bytes; the largest release is about 0.3 GiB
_SCHEMES = ("https://", "http://", "file://")


@dataclass(frozen=True)
class Release:
    url: str
    sha256: str
    member: str | None


class Unreachable(Exception):
    """The release could not be fetched; another source may do."""


def settings_file() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(config) if Path(config).is_absolute() else Path.home() / ".config") / "fleet" / "toolchain.toml"


def releases() -> dict[str, Release]:
    """Every release that may be downloaded, by program. Raises ToolchainError for a faulty settings file."""
    known = {
        program.name: Release(program.official_url(), program.sha256, _member(program))
        for program in PROGRAMS
        if program.sha256 is not None and architecture() == "amd64"
    }
    return known | _from_settings(settings_file())


def _member(program: Program) -> str | None:
    return program.member and program.member.format(version=program.version, arch=architecture())


def _from_settings(path: Path) -> dict[str, Release]:
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ToolchainError(f"{path}: cannot be read as TOML: {error}") from error
    return {name: _entry(path, name, entry) for name, entry in document.items()}


def _entry(path: Path, name: str, entry: object) -> Release:
    names = [program.name for program in PROGRAMS]
    if name not in names:
        raise ToolchainError(f"{path}: found [{name}]; expected one of {', '.join(names)}")
    expected = "url and sha256, and member for an archive"
    if not isinstance(entry, dict) or not {"url", "sha256"} <= entry.keys() <= {"url", "sha256", "member"}:
        raise ToolchainError(f"{path}: [{name}] must hold {expected}; found {entry!r}")
    if not all(isinstance(value, str) for value in entry.values()):
        raise ToolchainError(f"{path}: [{name}]: every value must be a text in quotes")
    if not entry["url"].startswith(_SCHEMES):
        raise ToolchainError(f"{path}: {name}.url: found {entry['url']}; expected one of {', '.join(_SCHEMES)}")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"].lower()):
        raise ToolchainError(f"{path}: {name}.sha256: expected 64 hex digits; found {len(entry['sha256'])} characters")
    return Release(entry["url"], entry["sha256"].lower(), entry.get("member"))


def download(release: Release, name: str, folder: Path, report: Callable[[str], None]) -> Path:
    """Fetches and verifies a release; returns the program, complete, inside `folder`.

    Raises Unreachable when it cannot be fetched, and ToolchainError when what came is not what was pinned: then nothing
    else is tried, since somebody should look.
    """
    fetched = folder / "release"
    found = _fetch(release.url, fetched, name, report)
    if found != release.sha256:
        raise ToolchainError(
            f"{name}: {release.url} has SHA-256 {found}; expected {release.sha256}. Nothing of it was kept. "
            f"If the release was replaced on purpose, correct the checksum ({settings_file()})"
        )
    program = folder / name
    if release.member is None:
        fetched.rename(program)
        return program
    try:
        with tarfile.open(fetched) as archive:
            content = archive.extractfile(release.member)
            if content is None:
                raise KeyError(release.member)
            with content, program.open("wb") as file:
                shutil.copyfileobj(content, file)
    except (KeyError, tarfile.TarError) as error:
        raise ToolchainError(f"{name}: {release.url} holds no file {release.member}: {error}") from error
    fetched.unlink()
    return program


def _fetch(url: str, to: Path, name: str, report: Callable[[str], None]) -> str:
    digest = hashlib.sha256()
    size = told = 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, to.open("wb") as file:
            while chunk := answer.read(2**20):
                size += len(chunk)
                if size > _LARGEST:
                    raise ToolchainError(f"{name}: {url} is larger than {_LARGEST >> 30} GiB, which no program is")
                digest.update(chunk)
                file.write(chunk)
                if size - told >= 32 * 2**20:
                    told = size
                    report(f"{name}: {size >> 20} MB downloaded")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise Unreachable(f"{url}: {getattr(error, 'reason', error)}") from error
    return digest.hexdigest()
