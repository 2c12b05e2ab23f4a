"""How scripts and their data travel to a machine."""

import subprocess
from pathlib import Path
from typing import Any

import pulumi
import pytest

import cli.plan
from cli.plan import Declared
from infra import remote
from infra.k3s.cluster import read_script
from tests.sites import SITES, declared, of_type, three_sites

KEY = "PRIVATE-KEY-MARK"


def commands(site_id: str) -> dict[str, Declared]:
    return of_type(declared(site_id), "command:remote:Command")


def test_no_value_of_the_documents_is_part_of_a_command_line() -> None:
    for site_id in SITES:
        guests = three_sites().sites[site_id].guests.values()
        values = [*(guest.name for guest in guests), *(f"{guest.address}" for guest in guests)]
        for name, made in commands(site_id).items():
            assert not [value for value in values if value in made.inputs["create"]], name
            assert made.inputs.get("environment") is None


def test_root_gets_a_shell_and_others_get_it_by_a_sudo_that_never_asks() -> None:
    assert remote.shell("root") == "/bin/sh"
    assert remote.shell("fleet") == "sudo -n /bin/sh"
    for site_id in SITES:
        for made in commands(site_id).values():
            assert made.inputs["create"] == remote.shell(made.inputs["connection"]["user"])


def through_a_shell(program: str) -> tuple[int, str]:
    done = subprocess.run(["/bin/sh"], input=program, capture_output=True, text=True, check=False, timeout=20)
    return done.returncode, done.stdout


@pytest.mark.parametrize("script", ["printf '%s' \"it's\"", 'printf "$((1 + 1)) \\"`echo x`\\""', "printf 'a\nb'"])
def test_a_script_runs_as_it_is_written(script: str) -> None:
    direct = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    assert through_a_shell(remote.assemble(script, {"some": "data"})) == (0, direct)


def test_a_script_that_fails_fails_and_data_never_runs() -> None:
    assert through_a_shell(remote.assemble("exit 3", {"a": "echo ran"})) == (3, "")
    assert through_a_shell(remote.assemble("true", {"a": "echo ran"})) == (0, "")


def test_data_arrives_on_its_own_descriptor_as_it_is() -> None:
    odd = {"a": "  $HOME `id` \\ 'one' \"two\"", "b": "x" * 200_000}
    assert through_a_shell(remote.assemble("cat <&3", odd)) == (0, remote.pack(odd))


def test_no_program_of_a_script_eats_the_script() -> None:
    assert through_a_shell(remote.assemble("cat; echo after", {})) == (0, "after\n")


def test_every_command_but_the_first_contact_pins_the_host_key() -> None:
    for site_id in SITES:
        for name, made in commands(site_id).items():
            assert name.endswith("-contact") or made.inputs["connection"]["hostKey"], name


def test_sec_07_no_command_logs_what_it_reads_or_prints() -> None:
    for site_id in SITES:
        for made in commands(site_id).values():
            assert made.inputs["logging"] == "none"
            assert made.inputs["addPreviousOutputInEnv"] is False


def test_sec_07_output_and_connection_of_every_command_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret_outputs: list[set[str]] = []

    class Watching(cli.plan.Recorder):
        def RegisterResource(self, request: Any) -> Any:  # name of the gRPC method
            if request.type == "command:remote:Command":
                secret_outputs.append(set(request.additionalSecretOutputs))
            return super().RegisterResource(request)

    monkeypatch.setattr(cli.plan, "Recorder", Watching)
    machine = remote.Machine(address="192.0.2.1", user="root", private_key=KEY)
    opts = pulumi.ResourceOptions(additional_secret_outputs=["triggers"])
    record = cli.plan.declare(lambda: remote.run("x", machine, "true", opts))
    assert secret_outputs[0] >= {"stdout", "stderr", "triggers"}
    made = record[("command:remote:Command", "x")]
    assert "connection" in made.secret
    assert KEY not in str(made.shown)


def test_the_private_key_is_secret_even_if_it_arrives_plain() -> None:
    machine = remote.Machine(address="192.0.2.1", user="root", private_key=KEY, host_key="ssh-ed25519 AAAA")
    record = cli.plan.declare(lambda: remote.run("x", machine, "true", pulumi.ResourceOptions(), data={"n": "data"}))
    made = record[("command:remote:Command", "x")]
    assert made.inputs["connection"]["privateKey"] == KEY
    assert KEY not in str(made.shown)
    assert made.inputs["stdin"] == remote.assemble("true", {"n": "data"})
    assert "stdin" not in made.secret, "what is not secret is readable in a preview"


def test_secret_data_stays_secret() -> None:
    machine = remote.Machine(address="192.0.2.1", user="root", private_key=KEY)

    def program() -> None:
        data = pulumi.Output.secret({"token": "TOKEN-MARK"})
        remote.run("x", machine, "true", pulumi.ResourceOptions(), data=data)

    record = cli.plan.declare(program)
    made = record[("command:remote:Command", "x")]
    assert "TOKEN-MARK" in made.inputs["stdin"]
    assert "stdin" in made.secret
    assert "TOKEN-MARK" not in str(made.shown)


def test_a_wait_for_a_machine_is_bounded() -> None:
    for site_id in SITES:
        for made in commands(site_id).values():
            connection = made.inputs["connection"]
            assert connection["dialErrorLimit"] * connection["perDialTimeout"] <= 900


def test_the_first_contact_reads_the_public_host_key_and_nothing_private() -> None:
    assert "ssh_host_ed25519_key.pub" in remote.FIRST_CONTACT
    assert "ssh_host_ed25519_key\n" not in remote.FIRST_CONTACT


def test_sections_are_lines_of_their_own_and_end_with_a_newline() -> None:
    assert remote.pack({"a": "one", "b": "two\n"}) == "=== a\none\n=== b\ntwo\n"


def test_an_empty_section_holds_nothing() -> None:
    assert remote.pack({"a": "", "b": "\n", "c": "x"}) == "=== a\n=== b\n=== c\nx\n"


def test_a_section_that_holds_a_section_line_is_refused() -> None:
    with pytest.raises(ValueError, match="section a"):
        remote.pack({"a": "fine\n=== b\nstolen"})
    with pytest.raises(ValueError, match="section a"):
        remote.assemble("true", {"a": f"{remote.END}\nid"})


@pytest.mark.parametrize("content", ["\0=== b", "=\0== b", "a\rb", "\x1b[2J", "a\x7f"])
def test_a_section_with_a_control_character_is_refused(content: str) -> None:
    """A shell drops a NUL: what is no mark here would be one on the node."""
    with pytest.raises(ValueError, match="section a"):
        remote.pack({"a": f"text\n{content}\nmore"})


@pytest.mark.parametrize("name", ["../a", "/a", "a b", "", ".."])
def test_a_section_is_called_like_a_file_of_its_folder(name: str) -> None:
    with pytest.raises(ValueError, match="section"):
        remote.pack({name: "text"})


def test_a_mark_with_a_path_opens_no_file(tmp_path: Path) -> None:
    """The reading side holds as well where something else has written the data."""
    target = tmp_path / "owned"
    data = f"=== a\none\n=== ../../../../../..{target}\ntwo\n"
    program = f"{{\n{read_script('lib')}\nreceive\ncat \"$work/a\"\nexit 0\n}} 3<<'{remote.END}'\n{data}{remote.END}\n"
    code, out = through_a_shell(program)
    assert (code, target.exists()) == (0, False)
    assert out.startswith("one\n")
