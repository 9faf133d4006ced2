"""The worlds that are put to the contract. A further one joins by a line here."""

import pytest

from libra.core.ids import Supply
from tests.contract.sim_world import SimWorld

WORLDS = {
    "sim": lambda supply: SimWorld("skip", supply),
    "sim-reference": lambda supply: SimWorld("reference", supply),
}


@pytest.fixture(params=sorted(WORLDS))
def world(request):
    """A fresh world whose prompts are pulled. At the end every event must have closed what it may close."""
    made = WORLDS[request.param](Supply.PULL)
    yield made
    made.check_closed()


@pytest.fixture(params=sorted(WORLDS))
def pushing_world(request):
    """A fresh world whose trajectories arrive by themselves."""
    made = WORLDS[request.param](Supply.PUSH)
    yield made
    made.check_closed()
