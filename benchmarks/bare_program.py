"""A bare Pulumi program: registers what a record says and reads nothing else. No documents, no rules, no layers.

Same resources, parents, providers, dependencies and options as the real program, with inputs that are known from the
start. Runs under the engine as `__main__.py`, and by itself under Pulumi's mocks, where it prints what it registered.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command
import pulumi_kubernetes as k8s
import pulumi_proxmoxve as pve
import pulumi_random as random

# Marks of the engine's wire format (pulumi SDK, `runtime/rpc.py`).
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
# Whoever declares such resources pays for the import of their classes (the SDKs load them at first use): so do we.
SDKS = (
    command.remote.Command,
    k8s.Provider,
    k8s.apiextensions.CustomResource,
    k8s.helm.v3.Release,
    pve.ContainerLegacy,
    pve.Provider,
    pve.VmLegacy,
    pve.download.FileLegacy,
    random.RandomPassword,
)
COMPUTED = {"command:remote:Command": {"stdout": "{}", "stderr": ""}}
STACK, PROVIDER = "pulumi:pulumi:Stack", "pulumi:providers:"


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def declare(recorded: list[dict[str, Any]]) -> None:
    """Registers every resource once those that it names are there."""
    made: dict[str, pulumi.Resource] = {}
    stack = {entry["urn"] for entry in recorded if entry["request"]["type"] == STACK}  # the SDK registers that
    waiting = [entry for entry in recorded if entry["urn"] not in stack]
    while waiting:
        later = []
        for entry in waiting:
            if _named(entry["request"]) <= made.keys() | stack:
                made[entry["urn"]] = _resource(entry["request"], made)
            else:
                later.append(entry)
        if len(later) == len(waiting):
            raise pulumi.RunError("the record names resources that it does not hold")
        waiting = later


def _named(request: dict[str, Any]) -> set[str]:
    provider = [request["provider"].rpartition("::")[0]] if "provider" in request else []
    others = [request.get("parent"), request.get("deletedWith"), *request.get("replaceWith", ())]
    return {urn for urn in (*others, *provider, *request.get("dependencies", ())) if urn}


def _resource(request: dict[str, Any], made: dict[str, pulumi.Resource]) -> pulumi.Resource:
    kind, name = request["type"], request["name"]
    if not request.get("custom"):
        opts = pulumi.ResourceOptions(parent=made.get(request.get("parent", "")))
        component = pulumi.ComponentResource(kind, name, None, opts)
        component.register_outputs({})
        return component
    opts = pulumi.ResourceOptions(
        parent=made.get(request.get("parent", "")),
        depends_on=[made[urn] for urn in request.get("dependencies", ())],
        provider=made.get(request.get("provider", "").rpartition("::")[0]),  # type: ignore[arg-type]  # it is one
        protect=request.get("protect"),
        ignore_changes=request.get("ignoreChanges"),
        additional_secret_outputs=request.get("additionalSecretOutputs"),
        custom_timeouts=pulumi.CustomTimeouts(**request["customTimeouts"]) if "customTimeouts" in request else None,
        deleted_with=made.get(request.get("deletedWith", "")),
        replace_with=[made[urn] for urn in request.get("replaceWith", ())] or None,
        version=request.get("version"),
    )
    inputs = {key: _input(value) for key, value in request.get("object", {}).items()}
    if kind.startswith(PROVIDER):
        return pulumi.ProviderResource(kind.removeprefix(PROVIDER), name, inputs, opts)
    return pulumi.CustomResource(kind, name, inputs, opts)


def _input(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET:
            return pulumi.Output.secret(_input(value["value"]))
        return {key: _input(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_input(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Answers(pulumi.runtime.Mocks):
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.seen.append({"type": args.typ, "name": args.name, "inputs": args.inputs})
        return f"{args.name}-id", args.inputs | COMPUTED.get(args.typ, {})

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(args.token)


def under_mocks(program: Callable[[], None]) -> None:
    """What `fleet plan SITE --json` does, without a tree, masks and order: declares, then prints."""
    answers = _Answers()
    pulumi.runtime.set_mocks(answers, project="fleet", stack="bare")
    pulumi.runtime.test(lambda: program() and None)()  # type: ignore[no-untyped-call,func-returns-value]
    print(json.dumps(answers.seen, indent=2))


if __name__ == "__main__":
    record = entries(Path(os.environ["FLEET_BENCH_RECORD"]))
    if "FLEET_BENCH_MOCKS" in os.environ:
        under_mocks(lambda: declare(record))
    else:
        declare(record)
