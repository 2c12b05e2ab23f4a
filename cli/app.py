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
Accept = Annotated[
    list[str] | None, typer.Option("--accept", metavar="'KEY=reason'", help="Take a stop on for this run; repeatable.")
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
credentials = typer.Typer(cls=Group, help="CA and certificates of the ClusterMesh.", no_args_is_help=True)
app.add_typer(credentials, name="credentials", rich_help_panel=None)


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


@app.command("preview")
def preview_site(site: str, as_json: JsonFlag = False, accept: Accept = None) -> None:
    """Show what an update would change, and what stops it.

    Exit code 1 if the guard stops it. Needs the site's credentials; changes nothing.
    """
    from cli import update

    raise typer.Exit(update.preview(site, tuple(accept or ()), as_json_output=as_json))


@app.command("up")
def update_site(
    site: str,
    accept: Accept = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Preview a site, ask, then update it.

    A stop of the guard ends it before anything is changed.
    """
    from cli import update

    raise typer.Exit(update.up(site, tuple(accept or ()), yes=yes))


@app.command()
def rules(
    wanted: Annotated[str | None, typer.Argument(metavar="[FAMILY|ID]", help="For example NET or NET-09.")] = None,
    as_json: JsonFlag = False,
    write: Annotated[bool, typer.Option("--write", help="Write docs/rules.md.")] = False,
) -> None:
    """List the rules.

    Shows where each is kept; one by its id with everything about it.
    """
    from cli import rulebook

    if write:
        rulebook.write()
        say(f"wrote {rulebook.PAGE}")
        return
    chosen = rulebook.chosen(wanted)
    if as_json:
        show_json([rulebook.plain(entry) for entry in chosen])
    elif wanted and wanted.upper() == chosen[0].id:
        table((chosen[0].id, chosen[0].statement), rulebook.details(chosen[0]))
    else:
        table(("rule", "level", "home", "statement"), map(rulebook.row, chosen))


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

    Topics: lxc-host (what root sets on the host of a GPU container), hand-over (guests that an older project holds),
    cni-migration and cni-rollback (from Flannel to Cilium, and back), proxy-cutover (from the old proxy to Traefik).
    """
    from cli import documents, runbooks

    judgement = documents.judged(folder or documents.ROOT)
    documents.known_site(judgement, site)
    if judgement.fleet is None:
        documents.show(judgement)
        raise typer.Exit(1)
    print(runbooks.text(judgement.fleet, site, topic), end="")


@app.command()
def mtu(site: Annotated[str | None, typer.Argument(metavar="[SITE]")] = None, folder: Folder = None) -> None:
    """Show how large packets may be on each path.

    LAN, tunnels and Pods, and what Cilium is told. Exit code 1 if the documents contradict each other (NET-14).
    """
    from cli import documents
    from cli import mtu as budget

    budget.run(folder or documents.ROOT, site)


@app.command()
def topology(
    write: Annotated[bool, typer.Option("--write", help="Write docs/topology.svg.")] = False, folder: Folder = None
) -> None:
    """Draw the fleet as SVG.

    Sites with routers, clusters, guests, hosts, sessions and tunnels, from the documents alone.
    """
    from cli import documents, drawing

    judgement = documents.judged(folder or documents.ROOT)
    if judgement.fleet is None:
        documents.show(judgement)
        raise typer.Exit(1)
    picture = drawing.of(judgement.fleet)
    if write:
        place = (folder or documents.ROOT) / drawing.FILE
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(picture, encoding="utf-8")
        say(f"wrote {drawing.FILE}")
        return
    print(picture, end="")


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


@vyos.command("apply")
def vyos_apply(
    site: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be set; change nothing.")] = False,
) -> None:
    """Put into a router what the documents say and it lacks.

    Only where the document opted in (vyos.apply). Over SSH: backs up, sets and commits, reads back, confirms and saves.
    What is not confirmed the router takes back by itself. Nothing is deleted.
    """
    from cli import applying, documents

    raise typer.Exit(applying.run(documents.ROOT, site, yes=yes, dry_run=dry_run))


@app.command()
def backup(
    site: str,
    guest: Annotated[list[str] | None, typer.Option("--guest", help="Only this guest; repeatable.")] = None,
    record: Annotated[
        list[str] | None,
        typer.Option("--record", metavar="KIND:WHAT=REFERENCE", help="Record one made elsewhere; repeatable."),
    ] = None,
    taken: Annotated[str | None, typer.Option("--taken", metavar="TIME", help="When that was, in UTC.")] = None,
) -> None:
    """Back up a site and record it.

    Proxmox snapshots of its guests, etcd snapshots of its main clusters. Exit code 1 if one was not made.
    """
    from cli import backup, documents

    raise typer.Exit(backup.run(documents.ROOT, site, guest or [], record or [], taken))


@app.command()
def diff(
    base: Annotated[str | None, typer.Argument(metavar="[BASE]", help="Default: where this branch left main.")] = None,
    head: Annotated[str, typer.Argument(metavar="[HEAD]", help="Default: the working tree (.).")] = ".",
    sites: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As a comment of a pull request.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare the resources of two revisions.

    Offline: runs the plan of each revision. Exit code 1 if one has none.
    """
    from cli import diff_text

    raise typer.Exit(diff_text.run(base, head, sites or [], as_json=as_json, as_markdown=as_markdown))


@app.command()
def adopt(site: str, as_json: JsonFlag = False) -> None:
    """Compare existing guests with the document.

    Reads Proxmox, prints what the stack file must say, changes nothing. Exit code 1 if something differs.
    """
    from cli import adopt, documents

    raise typer.Exit(adopt.run(documents.ROOT, site, as_json=as_json))


@app.command(context_settings=PASS_THROUGH)
def test(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Leave the lab out.")] = False,
    rehearsals: Annotated[
        bool,
        typer.Option("--rehearsals", help="What takes the lab minutes that CI has not, such as runbooks."),
    ] = False,
) -> None:
    """Run everything that CI runs.

    Steps run in order; the first that fails ends the run. Further arguments go to pytest.
    FLEET_TEST_BUDGET_S bounds the time.
    """
    from cli import suite

    raise typer.Exit(suite.rehearse(context.args) if rehearsals else suite.run(fast, context.args))


@credentials.command("init")
def credentials_init(site: str) -> None:
    """Make what a site lacks.

    The CA, once for the fleet, and the site's certificates: secrets of its stack.
    """
    from cli import credentials

    credentials.init(site)


@credentials.command("export")
def credentials_export(site: str, file: Path) -> None:
    """Write the CA to an encrypted file.

    For another site. Passphrase: asked, or FLEET_CREDENTIALS_PASSPHRASE, or a file named by ..._FILE.
    """
    from cli import credentials

    credentials.export(site, file)


@credentials.command("import")
def credentials_import(site: str, file: Path) -> None:
    """Take the CA from an encrypted file.

    Makes the site's certificates from it.
    """
    from cli import credentials

    credentials.take(site, file)


@credentials.command("rotate")
def credentials_rotate(
    site: str,
    authority: Annotated[bool, typer.Option("--ca", help="The CA too, which breaks the mesh for a while.")] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take that CA from an exported file.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Issue a site's certificates anew."""
    from cli import credentials

    credentials.rotate(site, authority=authority, source=source, yes=yes)


@credentials.command("show")
def credentials_show(site: str, as_json: JsonFlag = False) -> None:
    """Show a site's certificates, without keys."""
    from cli import credentials

    credentials.show(site, as_json=as_json)


@lab.command()
def up(
    sites: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...")] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Begin without the existing guests.")] = False,
    accept: Accept = None,
    guard: Annotated[bool, typer.Option("--guard/--no-guard", help="Without: as a plain pulumi up.")] = True,
) -> None:
    """Bring sites up, all by default."""
    _read_meanwhile(sites)
    from lab import session

    if accept and len(sites or ()) != 1:
        raise Stop("found --accept for several sites; expected one: a key belongs to one plan")
    raise typer.Exit(session.up(console(), sites or None, empty=empty, accept=_reasons(accept), guard=guard))


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


@lab.command(context_settings=PASS_THROUGH)
def run(context: typer.Context) -> None:
    """Run a fleet command in the lab.

    On the lab's copies of the documents, for example: fleet lab run -- adopt franca
    """
    from lab.run import run

    raise typer.Exit(run(context.args))


@lab.command()
def fault(
    site: str,
    kind: Annotated[str, typer.Argument(help="locked, slow, unavailable, no-quorum, full or expired.")],
    subject: Annotated[str, typer.Argument(help="The guest that is locked, or the storage that is full.")] = "",
    off: Annotated[bool, typer.Option("--off", help="End it.")] = False,
) -> None:
    """Break a site's Proxmox."""
    from lab import session

    raise typer.Exit(session.fault(console(), site, kind, subject, off))


@lab.command()
def down() -> None:
    """End the lab; nothing stays behind."""
    from lab import session

    raise typer.Exit(session.down(console()))


def _reasons(accept: list[str] | None) -> dict[str, str]:
    if not accept:
        return {}
    from cli.update import reasons

    return reasons(tuple(accept))


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
