"""Output as it goes into a pipe, whoever runs the tests: pytest-xdist gives its workers a COLUMNS of their own."""

import pytest


@pytest.fixture(autouse=True)
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
