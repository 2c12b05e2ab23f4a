"""The pulumi that commands on real sites use, and what it opens."""

import shutil
from pathlib import Path

from cli.faults import Stop
from infra.config import Site
from operations.access import Access, access
from operations.engine import Engine, EngineError


def engine(folder: Path) -> Engine:
    """The pulumi of the PATH, else that of the toolchain, on a folder of documents."""
    found = shutil.which("pulumi")
    if found is None:
        from lab.toolchain import bin_directory  # noqa: PLC0415  # not needed where pulumi is installed

        cached = bin_directory() / "pulumi"
        if not cached.is_file():
            raise Stop("found no pulumi; expected it on the PATH (docs/production.md, section 1)")
        found = str(cached)
    made = Engine(program=Path(found), folder=folder)
    made.check()
    return made


def opened(folder: Path, site_id: str, site: Site) -> Access:
    """Secrets and host keys of a site. Raises Stop where the engine does not answer, InvariantError for what lacks."""
    try:
        return access(engine(folder), site_id, site)
    except EngineError as error:
        raise Stop(str(error)) from None
