import os
from pathlib import Path
import pytest
from lab.place import Place
from tests.lab.conftest import Checkout, Lab
from tests.lab.test_bgp import *  # noqa
from tests.lab.test_bgp import sites  # noqa

ROOT = Path(__file__).parents[2]
import tests.lab.test_bgp as _t

_t.ROUTERS = Path("/tmp/bgp-rendered")


@pytest.fixture(scope="session")
def lab():
    c = Checkout(root=ROOT, place=Place(Path("/tmp/lab-bgp")), environment=dict(os.environ), machine=("", ""))
    return Lab(checkout=c, first="", second="", arguments=frozenset())
