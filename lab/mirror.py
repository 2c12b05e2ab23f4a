"""Fills the folder that a site without a way out mirrors: K3s releases and charts, listed in one SHA256SUMS.

    k3s/<version>/k3s                              the lab's stand-in, under the name that nodes ask for
    k3s/<version>/k3s-airgap-images-amd64.tar.zst  an archive that only says that it stands in
    charts/<name>-<version>.tgz                    our contract charts; the folder is the value of `fleet:charts`
    SHA256SUMS                                     one line for each of them; its own SHA-256 is what a site pins

The same sources give the same bytes, so that a second `lab up` changes nothing. What is left out: the real releases. A
production mirror has this layout with upstream's files in it, and nodes verify both alike.
"""

import gzip
import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from lab.standins.k3s import VERSION
from lab.standins.k3s.bundle import bundle

CHARTS = Path(__file__).parent / "charts"
_IMAGES = "k3s-airgap-images-amd64.tar.zst"
_IMAGES_NOTE = (
    b"This is the lab. Its k3s is a stand-in that pulls and runs no image, so there are none in this archive.\n"
)


def build(directory: Path, k3s: Path, interpreter: Path) -> str:
    """Fills `directory`; returns the SHA-256 of its SHA256SUMS.

    `k3s` is the file to serve, or the stand-in's package, which is then packed to run with `interpreter`.
    """
    for part in ("k3s", "charts"):
        shutil.rmtree(directory / part, ignore_errors=True)
    release = directory / "k3s" / VERSION
    release.mkdir(parents=True)
    if k3s.is_dir():
        bundle(release / "k3s", interpreter)
    else:
        shutil.copyfile(k3s, release / "k3s")
        (release / "k3s").chmod(0o755)
    (release / _IMAGES).write_bytes(_zstd(_tar({"STAND-IN.txt": _IMAGES_NOTE})))
    pack_charts(directory / "charts")
    lines = [f"{_sha256(path)}  {path.relative_to(directory).as_posix()}\n" for path in _files(directory)]
    (directory / "SHA256SUMS").write_text("".join(lines))
    return _sha256(directory / "SHA256SUMS")


def pack_charts(directory: Path) -> None:
    """Packs every contract chart as `helm package` does, without its dates."""
    directory.mkdir(parents=True, exist_ok=True)
    for chart in sorted(path.parent for path in CHARTS.glob("*/Chart.yaml")):
        about = yaml.safe_load((chart / "Chart.yaml").read_text())
        content = {f"{chart.name}/{path.relative_to(chart).as_posix()}": path.read_bytes() for path in _files(chart)}
        (directory / f"{about['name']}-{about['version']}.tgz").write_bytes(gzip.compress(_tar(content), mtime=0))


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name not in ("SHA256SUMS", ".DS_Store"):
            yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tar(content: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)  # no date, no owner
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _zstd(content: bytes) -> bytes:
    """A valid zstd frame of one uncompressed block (RFC 8878), which spares a library for one small file."""
    if not 256 <= len(content) <= 65535:
        raise ValueError(f"{len(content)} bytes do not fit the two-byte size and the single block of this frame")
    header = b"\x28\xb5\x2f\xfd" + b"\x60" + (len(content) - 256).to_bytes(2, "little")
    last_raw_block = (1 | len(content) << 3).to_bytes(3, "little")
    return header + last_raw_block + content
