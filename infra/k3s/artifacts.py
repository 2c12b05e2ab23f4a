"""Where the files of a K3s release come from, and the checksum each must have.

From an artifact mirror (`fleet:artifacts`), whose list SHA256SUMS is pinned by its own checksum, or from the release
page, with the checksums of `common.k3s_checksums`. A node never installs a file it could not verify.
"""

from dataclasses import dataclass
from urllib.parse import quote

from infra.config import Common
from infra.versions import K3S_RELEASES

BINARY = "k3s"
IMAGES = "k3s-airgap-images-amd64.tar.zst"


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """An artifact mirror: `<url>/SHA256SUMS` lists every file below `<url>`."""

    url: str  # http or https; the checksum makes either safe
    sha256sums: str  # SHA-256 of the file SHA256SUMS


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a node needs to fetch and verify one release."""

    base: str  # URL of the folder that holds the two files
    list_url: str  # URL of SHA256SUMS, empty without a mirror
    list_sha256: str
    prefix: str  # path of the folder in SHA256SUMS
    binary_sha256: str  # empty with a mirror, or while nobody has given it
    images_sha256: str

    def section(self) -> str:
        """The settings as the scripts read them."""
        return "\n".join(f"{key}={value}" for key, value in vars(self).items())


def source(version: str, common: Common, mirror: Mirror | None) -> Source:
    """The source of a release, e.g. v1.32.13+k3s1."""
    if mirror is not None:
        base = mirror.url.rstrip("/")
        return Source(
            base=f"{base}/k3s/{quote(version)}",
            list_url=f"{base}/SHA256SUMS",
            list_sha256=mirror.sha256sums,
            prefix=f"k3s/{version}",
            binary_sha256="",
            images_sha256="",
        )
    sums = common.k3s_checksums.get(version)
    return Source(
        base=f"{K3S_RELEASES}/{quote(version)}",
        list_url="",
        list_sha256="",
        prefix="",
        binary_sha256=(sums.binary_sha256 if sums else None) or "",
        images_sha256=(sums.images_sha256 if sums else None) or "",
    )
