"""Base model and reusable field types of the documents."""

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from infra.config import cron

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]  # RFC 1123 label
ClusterName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]  # Cilium: at most 32 characters
Asn = Annotated[int, Field(ge=1, le=4294967294)]  # the last is reserved (RFC 7300): routers refuse it
Port = Annotated[int, Field(ge=1, le=65535)]
Mtu = Annotated[int, Field(ge=1280, le=9216)]
Mac = Annotated[str, Field(pattern=r"^([0-9A-F]{2}:){5}[0-9A-F]{2}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Without user and password: a document carries no secret.
HttpsUrl = Annotated[
    str,
    Field(
        pattern=r"^https://[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~%!*+,;:=@&?/#-]*)?$"
    ),
]
Hostname = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$")]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
Labels = dict[LabelKey, LabelValue]


def _own_labels(labels: dict[str, str]) -> dict[str, str]:
    """A kubelet does not start with labels that Kubernetes keeps to itself, and roles are found by them."""
    for key in labels:
        domain = key.rpartition("/")[0]
        kept = domain in ("kubernetes.io", "k8s.io") or domain.endswith((".kubernetes.io", ".k8s.io"))
        if kept and domain not in ("node.kubernetes.io", "topology.kubernetes.io"):
            raise ValueError(f"labels without {key}: Kubernetes sets those of {domain} itself")
    return labels


NodeLabels = Annotated[Labels, AfterValidator(_own_labels)]
Cron = Annotated[str, Field(pattern=r"^([0-9A-Za-z*/,?-]+ +){4}[0-9A-Za-z*/,?-]+$"), AfterValidator(cron.checked)]
Server = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]  # host name or IPv4 address
K3sVersion = Annotated[str, Field(pattern=r"^v1\.[0-9]{1,3}\.[0-9]{1,3}\+k3s[0-9]{1,3}$")]
DriverVersion = Annotated[str, Field(pattern=r"^[0-9]{3}\.[0-9]{1,4}(\.[0-9]{1,4})?$")]
# Folder of the Git repository, below its root: no part of it is hidden or leads upwards.
RepoFolder = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$", max_length=200)]
# No control character and none that turns the direction of writing: what is printed is what the document says. The one
# line break is that of a folded block.
ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+\n?$"
NonEmpty = Annotated[str, Field(min_length=1, pattern=ONE_LINE)]


def _of_a_machine(address: IPv4Address) -> IPv4Address:
    if address.is_unspecified or address.is_loopback or address.is_multicast or address.is_reserved:
        raise ValueError("an address that a machine can have")
    return address


MachineAddress = Annotated[IPv4Address, AfterValidator(_of_a_machine)]


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
