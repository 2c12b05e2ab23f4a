"""Where K3s keeps its files; the names are those of the real data folder."""

from dataclasses import dataclass
from pathlib import Path

NODE_PASSWORD = Path("/etc/rancher/node/password")
NODE_ID = Path("/etc/rancher/node/id")


@dataclass(frozen=True)
class Paths:
    data: Path

    @property
    def server(self) -> Path:
        return self.data / "server"

    @property
    def agent(self) -> Path:
        return self.data / "agent"

    @property
    def tls(self) -> Path:
        return self.server / "tls"

    @property
    def cred(self) -> Path:
        return self.server / "cred"

    @property
    def db(self) -> Path:
        return self.server / "db"

    @property
    def etcd(self) -> Path:
        return self.db / "etcd"

    @property
    def sqlite(self) -> Path:
        """The file by which everybody tells a sqlite server; empty here."""
        return self.db / "state.db"

    @property
    def sqlite_content(self) -> Path:
        """Data folder of the private etcd that stands for kine on sqlite."""
        return self.db / "state.db-standin"

    @property
    def snapshots(self) -> Path:
        return self.db / "snapshots"

    @property
    def manifests(self) -> Path:
        return self.server / "manifests"

    @property
    def pod_manifests(self) -> Path:
        return self.agent / "pod-manifests"

    def log(self, name: str) -> Path:
        return self.data / "standin-logs" / f"{name}.log"


def write(path: Path, content: str, mode: int = 0o600) -> None:
    """Writes a file so that nobody ever sees half of it or, for a moment, a wider mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=mode)
    draft.chmod(mode)
    draft.write_text(content)
    draft.replace(path)
