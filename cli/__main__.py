"""`python -m cli`, which the launcher `fleet` runs."""

from cli.app import app
from cli.screen import prepare

prepare()
app(prog_name="fleet")
