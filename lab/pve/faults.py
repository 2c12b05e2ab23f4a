"""Faults of a site's Proxmox, switched on and off while it runs: what an update meets on a bad day.

Most are fakepve's own scenarios. Left out: a lossy network, whose effects are the client's to retry and never the same.
"""

from collections.abc import Callable
from typing import Any, Final

from lab import LabError
from lab.pve.fake import Fake

WRITES: Final = ("POST", "PUT", "DELETE")
SLOW_S: Final = 8.0
ANSWER: Final = (596, "Connection timed out")


class Faults:
    """The faults of one cluster. Each is switched by its kind; one that names a guest or a storage needs it given."""

    def __init__(self, pve: Fake) -> None:
        self._pve = pve
        self._tokens: dict[str, str] = {}
        self._kinds: dict[str, Callable[[bool, str], None]] = {
            "locked": self._locked,
            "slow": self._slow,
            "unavailable": self._unavailable,
            "no-quorum": self._no_quorum,
            "full": self._full,
            "expired": self._expired,
        }

    def switch(self, kind: str, on: bool, subject: str) -> None:
        """Raises LabError for a kind, a guest or a storage that there is not."""
        if kind not in self._kinds:
            raise LabError(f"the lab knows no fault {kind}; expected one of: {', '.join(self._kinds)}")
        self._kinds[kind](on, subject)

    def _locked(self, on: bool, guest: str) -> None:
        """As a backup that runs, or one that died, leaves it."""
        found: list[Any] = [raw for raw in (*self._pve.vms, *self._pve.cts) if raw.name == guest]
        if not found:
            raise LabError(f"fault locked: no guest {guest or '(none given)'} on this Proxmox; name one that it has")
        if on:
            self._pve.snapshot_lock(found[0].vmid, "backup")
        else:
            self._pve.unlock(found[0].vmid)

    def _slow(self, on: bool, _: str) -> None:
        self._pve.slow_s = SLOW_S if on else 0.0
        self._pve.time_scale = 1.0 if on else 0.0  # else a task has ended when its call returns

    def _unavailable(self, on: bool, _: str) -> None:
        """The host that answers cannot reach the one that is asked for."""
        for method in WRITES:
            if on:
                self._pve.fail(method, "", *ANSWER)
            else:
                self._pve.failures.pop((method, ""), None)

    def _no_quorum(self, on: bool, _: str) -> None:
        if on:
            self._pve.lose_quorum()
        else:
            self._pve.regain_quorum()

    def _full(self, on: bool, storage: str) -> None:
        if storage not in self._pve.storages:
            known = ", ".join(self._pve.storages)
            raise LabError(f"fault full: no storage {storage or '(none given)'}; expected one of: {known}")
        if on:
            self._pve.storages[storage]["avail"] = 0
        else:
            self._pve.storages[storage].pop("avail", None)

    def _expired(self, on: bool, _: str) -> None:
        """Tokens and tickets alike."""
        if on and not self._tokens:
            self._tokens = dict(self._pve.apitokens)
            self._pve.apitokens.clear()
            self._pve.revoke_tickets()
        elif not on:
            self._pve.apitokens.update(self._tokens)
            self._tokens = {}
