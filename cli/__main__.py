"""`python -m cli`, which the launcher `fleet` runs."""

from cli.app import app

app(prog_name="fleet")
