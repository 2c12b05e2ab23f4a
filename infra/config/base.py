"""Base model and reusable field types of the documents."""

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]  # RFC 1123 label
ClusterName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]  # Cilium: at most 32 characters
Asn = Annotated[int, Field(ge=1, le=4294967295)]
Port = Annotated[int, Field(ge=1, le=65535)]
Mtu = Annotated[int, Field(ge=1280, le=9216)]
Mac = Annotated[str, Field(pattern=r"^([0-9A-F]{2}:){5}[0-9A-F]{2}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
HttpsUrl = Annotated[str, Field(pattern=r"^https://[^\s]+$")]
Hostname = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$")]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
Labels = dict[LabelKey, LabelValue]
Cron = Annotated[str, Field(pattern=r"^(\S+\s+){4}\S+$")]
NonEmpty = Annotated[str, Field(min_length=1)]


class Model(BaseModel):
    """Frozen, refuses unknown keys; the docstring under a field becomes its description in the JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Named(Model):
    """An entry of a map: its key is its name."""

    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        return self._name


def name_entries(entries: Mapping[str, Named]) -> None:
    """Tells each entry of a map its own key."""
    for key, entry in entries.items():
        entry._name = key


class AddressRange(Model):
    """Inclusive range of IPv4 addresses."""

    start: IPv4Address
    """First address."""
    stop: IPv4Address
    """Last address."""

    def __contains__(self, address: IPv4Address) -> bool:
        return self.start <= address <= self.stop

    def __str__(self) -> str:
        return f"{self.start}-{self.stop}"
