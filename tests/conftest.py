"""Fixtures of all tests.

Leaves out the lab's own fixtures (`tests/lab/conftest.py`). What is here for the lab is its time: tests of the lab that
would begin after FLEET_TEST_DEADLINE (seconds of the epoch) are dropped, named at the end, and fail the run if
FLEET_TEST_DROPPED_FAIL is 1. `fleet test` sets both.
"""

import importlib
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.config import Fleet, load
from infra.config.loading import common_value, site_value, stack_files
from tests.operations.loop import Loop

with warnings.catch_warnings():
    # The SDK warns of deprecated classes of its own while it is imported; no code of ours uses them.
    warnings.simplefilter("ignore", DeprecationWarning)
    importlib.import_module("infra.remote")

pytest_plugins = ["tests.test_contracts"]  # brings the option --contracts

ROOT = Path(__file__).parents[1]
DROPPED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[DROPPED] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    deadline = os.environ.get("FLEET_TEST_DEADLINE", "")
    if deadline and time.time() > float(deadline) and item.get_closest_marker("lab"):
        item.config.stash[DROPPED].append(item.nodeid)
        pytest.skip("no time left")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for test in config.stash[DROPPED]:
        terminalreporter.write_line(f"not run for lack of time: {test}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    fails = os.environ.get("FLEET_TEST_DROPPED_FAIL") == "1"
    if fails and session.config.stash[DROPPED] and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """The shipped documents."""
    loaded, faults = load(ROOT)
    assert loaded is not None, faults
    return loaded


@pytest.fixture
def documents() -> Iterator[dict[str, dict[str, Any]]]:
    """The shipped documents as plain data, `common` and each site; a test may change its copy."""
    sites = {site_id: site_value(path) for site_id, path in stack_files(ROOT).items()}
    yield {"common": common_value(ROOT / "Pulumi.yaml"), **sites}
