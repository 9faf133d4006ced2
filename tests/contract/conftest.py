"""The worlds that are put to the contract. A further one joins by a line here."""

import pytest

from libra.core.ids import Supply
from tests.contract import executor_world
from tests.contract.sim_world import SimWorld

WORLDS = {
    "executor": executor_world.make,
    "sim": lambda supply: SimWorld("skip", supply),
    "sim-reference": lambda supply: SimWorld("reference", supply),
}
PUSHING = ("sim", "sim-reference")
"""Worlds in which trajectories may arrive by themselves. The executor only pulls, out of a data set."""


@pytest.fixture(params=sorted(WORLDS))
def world(request):
    """A fresh world whose prompts are pulled. At the end every event must have closed what it may close."""
    made = WORLDS[request.param](Supply.PULL)
    try:
        yield made
        made.check_closed()
    finally:
        made.close()


@pytest.fixture(params=sorted(PUSHING))
def pushing_world(request):
    """A fresh world whose trajectories arrive by themselves."""
    made = WORLDS[request.param](Supply.PUSH)
    yield made
    made.check_closed()
