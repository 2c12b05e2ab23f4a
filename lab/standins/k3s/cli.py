"""Command line of the `k3s` stand-in; also `kubectl`, when called by that name."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from . import COMMIT, VERSION, log, pki, settings, tokens
from .children import binary
from .join import Refused, Supervisor, Unreachable
from .log import Fatal
from .paths import NODE_ID, Paths, write
from .settings import Settings

_USAGE = f"""NAME:
   k3s - Kubernetes, but small and simple (stand-in of the lab: etcd and Kubernetes are real, containers are not)

USAGE:
   k3s [global options] command [command options]

VERSION:
   {VERSION} ({COMMIT})

COMMANDS:
   server, agent, kubectl, etcd-snapshot, token, certificate, check-config, completion, help
"""
_ABSENT = ("crictl", "ctr", "secrets-encrypt")


def main(argv: Sequence[str]) -> int:
    called_as, words = Path(argv[0]).name, list(argv[1:])
    try:
        if called_as == "kubectl":
            return _kubectl(words)
        if called_as in _ABSENT:
            raise Fatal(f"{called_as}: not in the lab, there are no containers")
        return _dispatch(words)
    except Fatal as problem:
        log.fatal(str(problem))
        return 1


def _dispatch(words: list[str]) -> int:
    while words and words[0] in ("--debug", "-debug"):
        words.pop(0)
    command, rest = (words[0], words[1:]) if words else ("help", [])
    if command in ("--version", "-v", "-version"):
        print(f"k3s version {VERSION} ({COMMIT})\ngo version none (stand-in of the lab)")
        return 0
    if command in ("help", "--help", "-h") or ("--help" in rest and command != "kubectl"):
        print(_USAGE)
        return 0
    commands: dict[str, Callable[[list[str]], int]] = {
        "server": _server,
        "agent": _agent,
        "kubectl": _kubectl,
        "etcd-snapshot": _snapshot,
        "token": _token,
        "certificate": _certificate,
        "check-config": _check_config,
        "completion": _completion,
    }
    if command in commands:
        return commands[command](rest)
    if command in _ABSENT:
        raise Fatal(f"{command}: not in the lab")
    print(_USAGE)
    print(f"No help topic for '{command}'", file=sys.stderr)
    return 3


def _load(role: settings.Role, words: list[str]) -> Settings:
    loaded = settings.load(role, words, os.environ)
    name = loaded.text("node-name") or socket.gethostname()
    if role != "etcd-snapshot" and loaded.on("with-node-id"):
        if not NODE_ID.exists():
            write(NODE_ID, tokens.new_password()[:8] + "\n")
        name += f"-{NODE_ID.read_text().strip()}"
    loaded.values["node-name"] = [name.lower()]
    return loaded


def _server(words: list[str]) -> int:
    from .server import serve  # noqa: PLC0415 - kubectl must start fast: aiohttp takes a while to load

    return _run("server", words, serve)


def _agent(words: list[str]) -> int:
    from .agent import serve  # noqa: PLC0415 - as above

    return _run("agent", words, serve)


def _run(
    role: settings.Role, words: list[str], serve: Callable[[Settings, Sequence[str], Mapping[str, str]], Awaitable[int]]
) -> int:
    loaded = _load(role, words)
    shown = [role, *(w for w in words if "token" not in w)]  # ends up in an annotation of the Node
    return asyncio.run(_awaited(serve(loaded, shown, os.environ)))


async def _awaited(work: Awaitable[int]) -> int:
    return await work


def _kubectl(words: list[str]) -> int:
    os.environ.setdefault("KUBECONFIG", "/etc/rancher/k3s/k3s.yaml")
    program = binary("kubectl")
    os.execv(program, [program, *words])


def _local_supervisor(data: Path, user_token: str = "") -> Supervisor:
    paths = Paths(data)
    try:
        ca_pem = (paths.tls / "server-ca.crt").read_text()
        token = tokens.parse(user_token or (paths.server / "token").read_text())
    except OSError as problem:
        raise Fatal(f"see server log for details: {problem}; is this a server?") from None
    return Supervisor("https://127.0.0.1:6443", ca_pem, "server", token.password)


def _ask(supervisor: Supervisor, path: str, method: str, body: object) -> str:
    try:
        return asyncio.run(supervisor.text(path, method, body=body, timeout_s=90))
    except Unreachable as problem:
        raise Fatal(f"Error: {problem}") from None
    except Refused as problem:
        raise Fatal(f"Error: see server log for details: {str(problem).rpartition(': ')[2]}") from None


def _snapshot(words: list[str]) -> int:
    action = words.pop(0) if words and not words[0].startswith("-") else "save"
    action = {"list": "ls", "l": "ls"}.get(action, action)
    if action not in ("save", "ls", "delete", "prune"):
        raise Fatal(f"etcd-snapshot: found {action}, expected save, ls, delete or prune")
    loaded = _load("etcd-snapshot", words)
    order = {
        "action": action,
        "name": loaded.text("name"),
        "names": loaded.rest,
        "dir": loaded.text("etcd-snapshot-dir") or loaded.text("dir"),
        "compress": loaded.on("snapshot-compress") or loaded.on("compress"),
        "retention": loaded.text("snapshot-retention"),
    }
    if action == "delete" and not loaded.rest:
        raise Fatal("no snapshots given for removal")
    # the config file may hold the token of the cluster, but the running server's own file is what is valid
    supervisor = _local_supervisor(Path(loaded.text("data-dir")))
    found = json.loads(_ask(supervisor, "/db/snapshot", "POST", order))
    if action == "ls":
        print(f"{'Name':50} {'Location':80} {'Size':10} Created")
        for s in found:
            print(f"{s['name']:50} {s['location']:80} {s['size']:<10} {s['created']}")
    else:
        verb = {"save": "saved", "delete": "deleted", "prune": "pruned"}[action]
        for s in found:
            log.info(f"Snapshot {s['name']} {verb}.")
    return 0


def _token(words: list[str]) -> int:
    action = words.pop(0) if words else ""
    options = dict(zip((w.lstrip("-") for w in words[::2]), words[1::2], strict=False))
    if action == "generate":
        print(tokens.new_bootstrap_token())
        return 0
    data = Path(options.get("data-dir", "/var/lib/rancher/k3s"))
    if action == "rotate":
        new = options.get("new-token") or tokens.new_password()
        _ask(_local_supervisor(data, options.get("token", "")), "/v1-k3s/token", "PUT", {"newToken": new})
        print("Token rotated, restart k3s nodes with new token", file=sys.stderr)
        return 0
    if action == "create":
        name, secret = tokens.new_bootstrap_token().split(".")
        manifest = (
            "apiVersion: v1\nkind: Secret\ntype: bootstrap.kubernetes.io/token\n"
            f"metadata: {{name: bootstrap-token-{name}, namespace: kube-system}}\n"
            f"stringData: {{token-id: {name}, token-secret: {secret}, usage-bootstrap-authentication: 'true'}}\n"
        )
        kubeconfig = Paths(data).cred / "admin.kubeconfig"
        command = [binary("kubectl"), f"--kubeconfig={kubeconfig}", "create", "-f", "-"]
        subprocess.run(command, input=manifest, text=True, check=True, stdout=subprocess.DEVNULL)
        ca_pem = (Paths(data).tls / "server-ca.crt").read_text()
        print(f"K10{tokens.ca_hash(ca_pem)}::{name}.{secret}")
        return 0
    raise Fatal(f"token: found {action or 'nothing'}, expected create, generate or rotate (the lab has no more)")


def _certificate(words: list[str]) -> int:
    action = words[0] if words else ""
    paths = Paths(Path("/var/lib/rancher/k3s"))
    found = [(n, paths.tls / f"{n}.crt") for n in pki.leaf_names() if (paths.tls / f"{n}.crt").exists()]
    if action == "check":
        for name, path in found:
            subject, end = pki.expiry(path)
            log.info(f"{path}: certificate {subject} is ok, expires at {end:%Y-%m-%dT%H:%M:%SZ} ({name})")
        return 0
    if action == "rotate":
        for _, path in found:
            path.unlink()
        log.info("Successfully backed up certificates, please restart k3s server or agent to rotate certificates")
        return 0
    raise Fatal(f"certificate: found {action or 'nothing'}, expected check or rotate (the lab has no more)")


def _check_config(_: list[str]) -> int:
    print("STATUS: pass")
    return 0


def _completion(words: list[str]) -> int:
    if words[:1] not in (["bash"], ["zsh"]):
        raise Fatal("completion: expected bash or zsh")
    print("complete -W 'server agent kubectl etcd-snapshot token certificate check-config completion help' k3s")
    return 0
