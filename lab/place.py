"""Where a lab keeps its things: one folder per checkout of the project, outside of it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from lab import PROJECT


@dataclass(frozen=True)
class Place:
    """Paths of one lab."""

    root: Path

    @property
    def work(self) -> Path:
        """The copies of the stack files, beside a copy of the program's entry."""
        return self.root / "work"

    @property
    def state(self) -> Path:
        """Pulumi's backend."""
        return self.root / "state"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def mirror(self) -> Path:
        """Artifact mirror and charts."""
        return self.root / "mirror"

    @property
    def plugins(self) -> Path:
        """Launchers of the stand-in plugins."""
        return self.root / "plugins"

    @property
    def kubeconfigs(self) -> Path:
        return self.root / "kubeconfigs"

    @property
    def passphrase(self) -> Path:
        return self.root / "passphrase"

    @property
    def secrets(self) -> Path:
        """What the lab made up, by site; read by the Proxmox fakes as well."""
        return self.root / "secrets.json"

    @property
    def empty(self) -> bool:
        """Whether the lab began without the existing guests of the documents; so it stays until it goes."""
        return self._empty.exists()

    def begin(self, empty: bool) -> None:
        """Decides it for a new lab."""
        self._empty.unlink(missing_ok=True)
        if empty:
            self._empty.touch()

    @property
    def _empty(self) -> Path:
        return self.root / "began-empty"

    @property
    def authorities(self) -> Path:
        """Certificates of the Proxmox fakes' APIs, as one file."""
        return self.root / "authorities.pem"


def here() -> Place:
    """The lab of this checkout. FLEET_LAB_DIR moves it."""
    chosen = os.environ.get("FLEET_LAB_DIR")
    if chosen:
        return Place(Path(chosen).absolute())
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    checkout = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:12]
    return Place(base / "fleet" / "lab" / checkout)
