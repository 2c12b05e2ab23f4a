"""The real Pulumi engine inside the lab: its environment, its stacks, and what it says, line by line."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.names import SECRETS
from lab import PROJECT, LabError, control
from lab.place import Place
from operations import releases
from operations.engine import follow, own_temporary_folder

CONFIG_TIMEOUT_S = 120
UPDATE_TIMEOUT_S = 3600
_DONE = re.compile(r"^ ?(?P<sign>\+|~|-|\+-|<) +(?P<type>\S+) (?P<name>\S+) (?P<what>created|updated|deleted|replaced)")
_PLANNED = re.compile(
    r"^ ?(?:\+|~|-|\+-) +\S+ (?P<name>\S+) (?P<what>create|update|delete|replace)\b(?P<difference>( \[diff:[^\]]*\])?)"
)


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """Keeps a second update out. Raises LabError while one is under way."""
    place.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (place.root / "update.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LabError(
                f"another command is updating the lab in {place.root}; wait for it to end, or choose another place "
                "with FLEET_LAB_DIR"
            ) from error
        yield


class Engine:
    """Runs pulumi in the lab's network, on the lab's copies, with the lab's plugins."""

    def __init__(self, place: Place, toolchain: Path) -> None:
        self._place, self.toolchain = place, toolchain

    def environment(self) -> dict[str, str]:
        """Nothing of the caller's Pulumi reaches the lab: no backend, no token, no passphrase, no home."""
        place = self._place
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PULUMI_", "KUBE"))}
        home = place.root / "home"
        home.mkdir(parents=True, exist_ok=True)
        path = [str(place.plugins), str(self.toolchain), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return kept | {
            "PATH": os.pathsep.join(path),
            "HOME": str(home),
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SSL_CERT_FILE": str(place.authorities),
            "REQUESTS_CA_BUNDLE": str(place.authorities),
            "PULUMI_HOME": str(place.root / "pulumi-home"),
            "PULUMI_BACKEND_URL": f"file://{place.state}",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(place.passphrase),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }

    def prepare(self, site: str, config: dict[str, str]) -> None:
        """Makes the stack and gives it the secrets it lacks. Values go by standard input, never as arguments."""
        self._place.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not any(self._place.state.glob(f".pulumi/stacks/fleet/{site}.json*")):
            self._quiet(["stack", "init", site, "--no-select"])
        file = self._place.work / f"Pulumi.{site}.yaml"
        known = yaml.safe_load(file.read_text()).get("config", {})
        for key, value in config.items():
            if f"fleet:{key}" not in known:
                kind = "--secret" if key in SECRETS else "--plaintext"
                self._quiet(["config", "set", kind, f"fleet:{key}", "--stack", site], stdin=value)

    def _quiet(self, arguments: list[str], stdin: str | None = None) -> str:
        done = self._fed(self._command(arguments), stdin)
        if done.returncode:
            raise LabError(f"pulumi {' '.join(arguments[:3])}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _fed(self, command: list[str], stdin: str | None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            input=stdin,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=CONFIG_TIMEOUT_S,
            check=False,
        )

    def _command(self, arguments: list[str]) -> list[str]:
        return [str(self.toolchain / "pulumi"), *arguments, "--cwd", str(self._place.work), "--non-interactive"]

    def unlock(self, site: str) -> None:
        """Makes a stack usable again whose engine was killed."""
        self._break_stale_locks(site)
        self._mend_cut_off_state(site)

    def mend(self, site: str) -> None:
        """Clears away all that an engine that was killed left behind: what must come before an update."""
        self.unlock(site)
        self._forget_cut_off_creations(site)

    def run(
        self,
        verb: str,
        site: str,
        on_line: Callable[[str], None],
        *more: str,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Runs `pulumi up` or `preview` of a site inside the lab; every line goes to the log and to `on_line`.

        On Ctrl-C the engine is asked to stop, and given time to write its state.
        """
        extra = ["--yes", "--skip-preview"] if verb == "up" else []
        arguments = [verb, "--stack", site, "--suppress-permalink=true", "--color", "never", *extra, *more]
        command = control.inside(self._place.root, self._command(arguments))
        log = self._place.logs / f"pulumi-{verb}-{site}.log"
        with own_temporary_folder(self._place.root) as folder, log.open("w") as file:

            def keep(line: str) -> None:
                file.write(f"{line}\n")
                file.flush()
                on_line(line)

            given = {**self.environment(), **(environment or {}), **folder}
            code = follow(command, given, keep, UPDATE_TIMEOUT_S)
        if code < 0:
            on_line(f"Diagnostics: pulumi was ended by {signal.Signals(-code).name}; run the update again")
        return min(1, abs(code))

    def _mend_cut_off_state(self, site: str) -> None:
        """An engine killed while it wrote the state leaves half a file; the one before lies beside it as `.bak`."""
        file = self._place.state / f".pulumi/stacks/fleet/{site}.json"
        backup = file.with_name(file.name + ".bak")
        if file.exists() and not _is_json(file) and _is_json(backup):
            shutil.copyfile(backup, file)

    def _break_stale_locks(self, site: str) -> None:
        """A killed engine leaves its lock behind, and would ask for `pulumi cancel` from then on. Callers are alone."""
        for path in (self._place.state / ".pulumi/locks").glob(f"**/{site}/*.json"):
            pid = json.loads(path.read_text() or "{}").get("pid", 0)
            look = control.inside(self._place.root, ["grep", "-qsa", "pulumi", f"/proc/{pid}/cmdline"])
            if subprocess.run(look, check=False, capture_output=True, timeout=CONFIG_TIMEOUT_S).returncode == 0:
                raise LabError(f"an engine is still updating {site} (process {pid} in the lab); wait for it to end")
            path.unlink(missing_ok=True)

    def _forget_cut_off_creations(self, site: str) -> None:
        """What a killed engine was making stands in the state as pending, and a guest as such in Proxmox: half made,
        empty, and in the way of the next try. An operator would look, then delete it and refresh; here nobody has to.
        """
        if not any((self._place.state / ".pulumi/stacks/fleet").glob(f"{site}.json*")):
            return
        exported = json.loads(self._quiet(["stack", "export", "--stack", site]))
        if releases.waiting(exported):
            plain = json.loads(self._quiet(["stack", "export", "--show-secrets", "--stack", site]))
            self._forget_releases(releases.packed(releases.cut_off(plain)))
        deployment = exported["deployment"] or {}
        pending = deployment.pop("pending_operations", None) or []
        if not pending:
            return
        done = {resource["urn"] for resource in deployment.get("resources", [])}
        for resource in (operation["resource"] for operation in pending if operation["type"] == "creating"):
            vmid = resource.get("inputs", {}).get("vmId")
            if vmid and resource["type"].startswith("proxmoxve:") and resource["urn"] not in done:
                control.request(self._place.root, op="discard-guest", site=site, vmid=int(vmid))
        self._quiet(["stack", "import", "--stack", site], stdin=json.dumps(exported))

    def _forget_releases(self, packed: str) -> None:
        """In the lab's network, where the clusters are. The kubeconfigs go by standard input."""
        command = control.inside(self._place.root, [sys.executable, "-P", "-m", "operations.releases"])
        done = self._fed(command, packed)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise LabError(f"the record of a cut-off Helm release could not be removed: {said[0]}")

    def outputs(self, site: str) -> dict[str, Any]:
        """Stack outputs with their secrets. Empty before the first update."""
        text = self._quiet(["stack", "output", "--show-secrets", "--json", "--stack", site])
        outputs: dict[str, Any] = yaml.safe_load(text) or {}
        return outputs


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_text())
    except (OSError, ValueError):
        return False
    return True


def telling(line: str) -> str | None:
    """A finished step, short; an error or warning as it is; None for the rest."""
    if planned := _PLANNED.match(line):
        return f"would {planned['what']} {planned['name']}{planned['difference'].rstrip()}"
    if done := _DONE.match(line):
        seconds = re.search(r"\(([\d.]+s)\)", line)
        return f"{done['what']} {done['name']}" + (f" ({seconds[1]})" if seconds else "")
    return None
