"""The commands, each a few lines: arguments in, a call to the program or the lab, an exit code out.

What a command does not use it does not import: `--help` and `check` must not wait for the Kubernetes SDK.
"""
# ruff: noqa: PLC0415  # for that reason

from pathlib import Path
from typing import Annotated

import typer

from cli.faults import Group, Stop
from cli.screen import console, say, show_json, table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Folder = Annotated[
    Path | None, typer.Option(help="Folder with Pulumi.yaml and the stack files; default: this project.")
]
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    cls=Group,
    help="On-premise Kubernetes federation as code: Proxmox, K3s, Cilium; one Pulumi stack per site.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
lab = typer.Typer(cls=Group, help="Both sites on this one machine.", no_args_is_help=True)
app.add_typer(lab, name="lab", rich_help_panel=None)
vyos = typer.Typer(cls=Group, help="The routers of the sites.", no_args_is_help=True)
app.add_typer(vyos, name="vyos", rich_help_panel=None)


@app.command()
def check(as_json: JsonFlag = False, folder: Folder = None) -> None:
    """Check all documents against all rules.

    Exit code 1 if anything would stop a run.
    """
    from cli import documents

    judgement = documents.judged(folder or documents.ROOT)
    if as_json:
        show_json(judgement.as_json())
    else:
        documents.show(judgement)
    raise typer.Exit(1 if judgement.stops else 0)


@app.command()
def plan(site: str, as_json: JsonFlag = False, folder: Folder = None) -> None:
    """Show all resources of a site, offline.

    They are what the program declares; no engine, no credential and no network takes part.
    """
    from cli import documents

    judgement = documents.judged(folder or documents.ROOT)
    documents.known_site(judgement, site)
    if judgement.fleet is None or judgement.stops:
        if as_json:
            show_json(judgement.as_json())
        else:
            documents.show(judgement)
            say("Nothing was planned.")
        raise typer.Exit(1)
    from cli import tree
    from cli.plan import plan as declared_by
    from cli.stand_in_inputs import placeholders

    declared = declared_by(judgement.fleet, site, placeholders)
    if as_json:
        show_json([one.masked() for one in tree.ordered(declared)])
        return
    tree.show(console(), declared)
    for violation, reason in judgement.accepted:
        if violation.site == site:
            say(f"accepted: {violation}; because: {reason}")
    for violation in judgement.warnings:
        if violation.site in (site, "common"):
            say(f"warning: {violation}")
    assumed = len(judgement.assumed["common"]) + len(judgement.assumed[site])
    if assumed:
        say(f"{assumed} assumed values: a real update refuses until each is confirmed (fleet check)")


@app.command()
def rules(
    wanted: Annotated[str | None, typer.Argument(metavar="[FAMILY|ID]", help="For example NET or NET-09.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the rules."""
    from infra.rules import RULES

    chosen = [RULES[id] for id in sorted(RULES)]
    if wanted:
        key = wanted.upper()
        chosen = [entry for entry in chosen if key in (entry.id, entry.family)]
        if not chosen:
            families = ", ".join(sorted({entry.family for entry in RULES.values()}))
            raise Stop(f"found no rule {wanted}; expected the id of one, or a family: {families}")
    if as_json:
        fields = ("id", "level", "source", "statement")
        show_json([{field: str(getattr(entry, field)) for field in fields} for entry in chosen])
        return
    table(
        ("rule", "level", "source", "statement"),
        [(entry.id, str(entry.level), entry.source, entry.statement) for entry in chosen],
    )


@app.command()
def schema(
    project: Annotated[bool, typer.Option("--project", help="That of Pulumi.yaml instead.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write docs/schema and docs/configuration.md.")] = False,
) -> None:
    """Print the JSON Schema of the stack files.

    Editors complete and check the stack files from it.
    """
    from cli import reference

    if write:
        for path in reference.write():
            say(f"wrote {path}")
        return
    print(reference.documents()[reference.PROJECT_SCHEMA if project else reference.STACK_SCHEMA], end="")


@app.command()
def toolchain(
    build: Annotated[bool, typer.Option("--build", help="Bring what is missing.")] = False,
) -> None:
    """List the binaries of the lab.

    Says where each comes from, and what is missing.
    """
    from lab.toolchain import bin_directory, ensure
    from lab.toolchain import plan as planned

    if build:
        say(f"complete: {ensure(say)}")
        return
    entries = planned()
    table(
        ("program", "version", "state", "source"),
        [
            (
                entry.program,
                entry.version,
                f"{entry.size_bytes >> 20} MB" if entry.present else f"{entry.minutes:.0f} min",
                entry.source,
            )
            for entry in entries
        ],
    )
    minutes = sum(entry.minutes for entry in entries)
    if all(entry.present for entry in entries):
        say(f"Complete: {bin_directory()}")
    else:
        say(f"Missing ones take about {minutes:.0f} minutes on two cores: fleet toolchain --build")


@app.command()
def runbook(site: str, topic: str, folder: Folder = None) -> None:
    """Print steps that only a person can take.

    Topics: lxc-host (what root sets on the host of a GPU container).
    """
    from cli import documents, runbooks

    judgement = documents.judged(folder or documents.ROOT)
    documents.known_site(judgement, site)
    if judgement.fleet is None:
        documents.show(judgement)
        raise typer.Exit(1)
    print(runbooks.text(judgement.fleet.sites[site], site, topic), end="")


@app.command()
def render(
    site: Annotated[str | None, typer.Argument()] = None,
    every: Annotated[bool, typer.Option("--all", help="All sites.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the files below config/.")] = False,
    compare: Annotated[bool, typer.Option("--check", help="Exit code 1 if a file is not what it would be.")] = False,
    folder: Folder = None,
) -> None:
    """Print the router configuration of a site.

    It comes from the documents, as files below config/vyos.
    """
    from cli import rendering

    raise typer.Exit(rendering.run(folder, site, every=every, write=write, compare=compare))


@vyos.command("diff")
def vyos_diff(
    site: str,
    file: Annotated[str, typer.Argument(help="`show configuration commands`, or config.boot; - for standard input.")],
    folder: Folder = None,
) -> None:
    """Compare a router's configuration with the documents.

    Prints what to delete and then what to set, inside what is ours alone. Exit code 0: equal, 1: different,
    2: cannot be compared. The file holds secrets; none of them is printed.
    """
    from cli import router

    raise typer.Exit(router.diff(folder, site, file))


@app.command(context_settings=PASS_THROUGH)
def test(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Leave the lab out.")] = False,
) -> None:
    """Run everything that CI runs.

    Steps run in order; the first that fails ends the run. Further arguments go to pytest.
    FLEET_TEST_BUDGET_S bounds the time.
    """
    from cli import suite

    raise typer.Exit(suite.run(fast, context.args))


@lab.command()
def up(sites: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...")] = None) -> None:
    """Bring sites up, all by default."""
    _read_meanwhile(sites)
    from lab import session

    raise typer.Exit(session.up(console(), sites or None))


@lab.command()
def preview(sites: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...")] = None) -> None:
    """Show what an update would change."""
    _read_meanwhile(sites)
    from lab import session

    raise typer.Exit(session.preview(console(), sites or None))


@lab.command()
def status(as_json: JsonFlag = False) -> None:
    """Show clusters, nodes and releases."""
    from lab import session

    raise typer.Exit(session.status(as_json, console()))


@lab.command(context_settings=PASS_THROUGH)
def kubectl(context: typer.Context, cluster: str) -> None:
    """Run kubectl on a cluster.

    For example: fleet lab kubectl cluster-fca -- get nodes
    """
    from lab import session

    raise typer.Exit(session.kubectl(cluster, context.args))


@lab.command(context_settings=PASS_THROUGH)
def ssh(context: typer.Context, node: str) -> None:
    """Log in to a node, or run a command.

    For example: fleet lab ssh vm-cpps-02 -- hostname
    """
    from lab import session

    raise typer.Exit(session.ssh(node, context.args))


@lab.command()
def down() -> None:
    """End the lab; nothing stays behind."""
    from lab import session

    raise typer.Exit(session.down(console()))


def _read_meanwhile(sites: list[str] | None) -> None:
    """While the first toolchain is built for half an hour there is something to read: the plan of each site."""
    from lab.toolchain import plan as planned

    if all(entry.present for entry in planned()):
        return
    from cli import documents

    judgement = documents.judged(documents.ROOT)
    if judgement.stops:
        documents.show(judgement)
        raise typer.Exit(1)
    for site in sites or judgement.sites:
        plan(site)
    say("First use: the toolchain comes next, once for this user; a build takes 30 to 40 minutes on two cores.")
