"""When the certificates of a site end: public facts that `fleet credentials` writes down, for whoever has no secrets.

`evidence/credentials/<site>.yaml` lies beside the documents and is committed like them. It holds fingerprints and
times, read from the certificates themselves; where no file is, nothing is said. An update reads the certificates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field

from infra.certificates import expiry, fingerprint, soon
from infra.config.base import Model, NonEmpty, Sha256
from infra.config.loading import parse
from infra.config.reader import read
from infra.violation import Level, Violation
from operations.evidence import FOLDER, FORM, a_time

PLACE = "credentials"
AUTHORITY = "ca"
_HEAD = """\
# When certificates of this site end: written by `fleet credentials`, read by `fleet check`. No secrets. Commit it.
"""


class Certificate(Model):
    """One certificate."""

    name: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")]
    """`ca`, or its role in the mesh."""
    sha256: Sha256
    """Fingerprint of its DER."""
    expires: Annotated[NonEmpty, AfterValidator(a_time)]
    """When it ends, in UTC."""

    @property
    def at(self) -> datetime:
        return datetime.strptime(self.expires, FORM).replace(tzinfo=UTC)


class Record(Model):
    """All certificates of a site."""

    certificates: tuple[Certificate, ...]
    """The CA first."""


def path_of(folder: Path, site_id: str) -> Path:
    return folder / FOLDER / PLACE / f"{site_id}.yaml"


def write(folder: Path, site_id: str, certificates: Mapping[str, str]) -> Path:
    """Records certificates (PEM) by name. Raises ValueError for what is none."""
    facts = [
        Certificate(name=name, sha256=fingerprint(pem), expires=expiry(pem).strftime(FORM)).model_dump()
        for name, pem in certificates.items()
    ]
    path = path_of(folder, site_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(_HEAD + yaml.safe_dump({"certificates": facts}, sort_keys=False), encoding="utf-8")
    fresh.replace(path)
    return path


def load(folder: Path, site_id: str) -> tuple[Record, list[Violation]]:
    """The record of a site, empty where there is none; or what is wrong with its file."""
    path, nothing = path_of(folder, site_id), Record(certificates=())
    if not path.exists():
        return nothing, []
    data, violations = read(path)
    if violations:
        place = path.parent.relative_to(folder)
        return nothing, [replace(one, path=f"{place}/{one.path}") for one in violations]
    record, violations = parse(Record, f"{site_id}.{PLACE}", data)
    return record or nothing, violations


def due(record: Record, site_id: str, now: datetime) -> Iterator[Violation]:
    """What ends within 60 days."""
    for one in record.certificates:
        if said := soon(one.at, now):
            yield Violation(
                id="MSH-06",
                path=f"{site_id}.{PLACE}.{one.name}",
                found=f"a certificate that {said}",
                expected="more than 60 days left",
                remedy=f"fleet credentials rotate {site_id}{' --ca' if one.name == AUTHORITY else ''}, then fleet up",
                level=Level.WARN,
            )
