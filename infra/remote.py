"""The one way to run a script on a machine: over SSH with a pinned host key, data on standard input, as root.

Scripts are files beside the layer that owns them. What varies reaches them as sections on descriptor 3 (`pack`; the
reading side is `receive` in `k3s/scripts/lib.sh`).
"""

import re
from dataclasses import dataclass, replace

import pulumi
import pulumi_command as command

END = "=== end of the data ==="
DIAL_ATTEMPTS = 60  # a guest boots, gets its keys and starts sshd meanwhile
DIAL_TIMEOUT_S = 10
_SECTION = re.compile("[a-z][a-z0-9.-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How the program reaches a guest."""

    address: str
    user: str
    private_key: pulumi.Input[str]  # OpenSSH, secret
    host_key: pulumi.Input[str] | None = None  # `ssh-ed25519 AAAA...`; None only for the first contact

    def pinned(self, host_key: pulumi.Input[str]) -> "Machine":
        return replace(self, host_key=host_key)


def run(
    name: str,
    machine: Machine,
    script: str,
    opts: pulumi.ResourceOptions,
    *,
    data: pulumi.Input[dict[str, str]] | None = None,
) -> command.remote.Command:
    """Declares a command that runs again whenever script, data or connection change, so the script must be repeatable.

    Script and data travel on standard input: the command line stays short where an error shows it, and empty of values.
    What is not secret is readable in a preview's diff.
    """
    program = pulumi.Output.from_input(data or {}).apply(lambda sections: assemble(script, sections))
    return command.remote.Command(
        name,
        connection=_connection(machine),
        create=shell(machine.user),
        stdin=program,
        logging=command.remote.Logging.NONE,
        add_previous_output_in_env=False,
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(additional_secret_outputs=["stdout", "stderr"])),
    )


def introduce(name: str, machine: Machine, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """First contact with a new guest: waits for its first boot and returns its public host key.

    The key is trusted once and kept in the state; every later command pins it, so a guest that answers with another key
    is refused.
    """
    first = run(name, machine, FIRST_CONTACT, opts)
    return first.stdout.apply(str.strip)


FIRST_CONTACT = """\
set -eu
if command -v cloud-init >/dev/null 2>&1; then
    timeout 600 cloud-init status --wait >/dev/null 2>&1 || true
fi
cut -d ' ' -f 1-2 /etc/ssh/ssh_host_ed25519_key.pub
"""


def shell(user: str) -> str:
    """The command line: a root shell that reads its program from standard input."""
    return "/bin/sh" if user == "root" else "sudo -n /bin/sh"


def assemble(script: str, sections: dict[str, str]) -> str:
    """Script and data as one program: the shell reads all of it first, the script finds the data on descriptor 3."""
    return f"{{\n{script.rstrip()}\nexit 0\n}} 3<<'{END}' </dev/null\n{pack(sections)}{END}\n"


def pack(sections: dict[str, str]) -> str:
    """Sections as one text: a line `=== name`, then the content. Raises ValueError for what could pass for a mark."""
    for name, content in sections.items():
        # A shell drops a NUL, so that a line which is no mark here would be one there.
        if not _SECTION.fullmatch(name) or _CONTROL.search(content):
            raise ValueError(f"section {name} holds a control character, or is called what no file may be")
        if any(line.startswith("=== ") for line in content.splitlines()):
            raise ValueError(f"section {name} holds a line that starts with the mark of a section")
    bodies = ((name, content.rstrip("\n")) for name, content in sections.items())
    return "".join(f"=== {name}\n{body}\n" if body else f"=== {name}\n" for name, body in bodies)  # empty: no line


def _connection(machine: Machine) -> command.remote.ConnectionArgsDict:
    connection: command.remote.ConnectionArgsDict = {
        "host": machine.address,
        "user": machine.user,
        "private_key": pulumi.Output.secret(machine.private_key),
        "dial_error_limit": DIAL_ATTEMPTS,
        "per_dial_timeout": DIAL_TIMEOUT_S,
    }
    if machine.host_key is not None:
        connection["host_key"] = machine.host_key
    return connection
