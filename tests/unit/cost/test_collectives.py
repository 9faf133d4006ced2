"""Collectives: the measured ones of two H200, formulas by hand, and laws that hold for any size, group and link."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.cost.collectives import CollectiveConfig, Fabric, Group
from libra.cost.hardware import find_gpu, gpu_names
from libra.errors import UserError

NCCL = Path(__file__).parents[4] / "shared" / "data" / "h200" / "nccl.txt"
NO_LATENCY = CollectiveConfig(
    1.0, 1.0, 1.0, 1.0, latency_s=0, copy_latency_s=0, hop_s=0, network_hop_s=0, floor_s=0, copy_floor_s=0
)
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def seconds(fabric, name, num_bytes, group):
    return getattr(fabric, f"{name}_s")(num_bytes, group)


@pytest.mark.data
@pytest.mark.skipif(not NCCL.exists(), reason="no development data in ../shared/data")
def test_every_measured_size_on_two_h200_is_met_within_25_percent():
    """The broadcast of 8 KiB is left out: it was the first ever and took longer than that of 4 MiB (54 against 25
    us), so no cost that grows with bytes is within 25 % of both."""
    fabric, pair = Fabric(find_gpu("H200")), Group(2, 2)
    rows = [line.split() for line in NCCL.read_text().splitlines() if line.startswith("nccl")]
    assert len(rows) == 7
    for _, size, all_reduce_s, broadcast_s in rows:
        assert fabric.all_reduce_s(int(size), pair) == pytest.approx(float(all_reduce_s), rel=0.25)
        if int(size) > 8192:
            assert fabric.broadcast_s(int(size), pair) == pytest.approx(float(broadcast_s), rel=0.25)


def test_the_two_anchors():
    fabric, pair = Fabric(find_gpu("H200")), Group(2, 2)
    assert fabric.all_reduce_s(1, pair) == pytest.approx(35e-6)
    assert fabric.all_reduce_s(2**30, pair) == pytest.approx(3.26e-3, rel=0.05)


def test_bytes_by_hand_inside_a_node():
    fabric, group = Fabric(find_gpu("H100"), config=NO_LATENCY), Group(8, 8)
    per_s = 450e9
    assert fabric.all_reduce_s(8e9, group) == pytest.approx(14e9 / per_s)
    assert fabric.all_gather_s(8e9, group) == pytest.approx(7e9 / per_s)
    assert fabric.reduce_scatter_s(8e9, group) == pytest.approx(7e9 / per_s)
    assert fabric.all_to_all_s(8e9, group) == pytest.approx(7e9 / per_s)
    assert fabric.broadcast_s(8e9, group) == pytest.approx(8e9 / per_s)
    assert fabric.point_to_point_s(8e9, same_node=True) == pytest.approx(8e9 / per_s)


def test_bytes_by_hand_between_nodes():
    """Two nodes of four: a node's ranks share what crosses, each over its own 50 GB/s."""
    fabric, group = Fabric(find_gpu("H100"), 4, NO_LATENCY), Group(8, 4)
    assert fabric.all_reduce_s(8e9, group) == pytest.approx(2 * (8e9 / 4) * (1 / 2) / 50e9)
    assert fabric.broadcast_s(8e9, group) == pytest.approx((8e9 / 4) / 50e9)
    assert fabric.all_to_all_s(8e9, group) == pytest.approx(8e9 * 4 / 8 / 50e9)
    assert fabric.point_to_point_s(8e9, same_node=False) == pytest.approx(8e9 / 50e9)


def test_a_network_of_200_gigabits_is_25_gigabytes():
    """An all-reduce between two A100 nodes of one rank each: B bytes over 25e9 bytes/s."""
    assert Fabric(find_gpu("A100"), 1, NO_LATENCY).all_reduce_s(25e9, Group(2, 1)) == pytest.approx(1.0)


def test_without_nvlink_pcie_carries_the_node():
    fabric = Fabric(find_gpu("L40S"), config=NO_LATENCY)
    assert fabric.all_reduce_s(32e9, Group(2, 2)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("size", "stride", "per_node", "num_nodes"),
    [(8, 1, 8, 1), (16, 1, 8, 2), (4, 4, 2, 2), (4, 8, 1, 4), (2, 16, 1, 2), (2, 2, 2, 1), (1, 1, 1, 1)],
)
def test_groups_of_a_layout(size, stride, per_node, num_nodes):
    """Ranks that lie further apart than a node is large are alone on theirs."""
    group = Fabric(find_gpu("H100"), 8).group(size, stride)
    assert (group.per_node, group.num_nodes) == (per_node, num_nodes)


fabrics = st.builds(Fabric, st.sampled_from(gpu_names()).map(find_gpu), st.sampled_from([1, 2, 4, 8]))
linked = fabrics.filter(lambda fabric: fabric.gpu.nvlink_bytes_per_s > 0)
sizes = st.integers(1, 64)
strides = st.integers(1, 16)
bytes_ = st.floats(1, 1e12)


@given(fabrics, sizes, strides, bytes_, bytes_, st.sampled_from(NAMES))
def test_more_bytes_never_take_less_time(fabric, size, stride, one, other, name):
    group = fabric.group(size, stride)
    low, high = sorted((one, other))
    assert 0 <= seconds(fabric, name, low, group) <= seconds(fabric, name, high, group)


@given(fabrics, bytes_, st.sampled_from(NAMES))
def test_a_group_of_one_and_no_bytes_are_free(fabric, num_bytes, name):
    assert seconds(fabric, name, num_bytes, Group(1, 1)) == 0.0
    assert seconds(fabric, name, 0, Group(4, 4)) == 0.0


@given(fabrics, st.integers(2, 8), bytes_)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(fabric, size, num_bytes):
    """In bytes exactly; it pays the fixed part once instead of twice."""
    free = Fabric(fabric.gpu, fabric.gpus_per_node, NO_LATENCY)
    group = free.group(size)
    halves_s = free.reduce_scatter_s(num_bytes, group) + free.all_gather_s(num_bytes, group)
    assert free.all_reduce_s(num_bytes, group) == pytest.approx(halves_s)
    group = fabric.group(size)
    assert fabric.all_reduce_s(num_bytes, group) <= 1.0001 * (
        fabric.reduce_scatter_s(num_bytes, group) + fabric.all_gather_s(num_bytes, group)
    )


@given(linked, st.sampled_from([2, 4, 8]), st.floats(1e6, 1e12), st.sampled_from(NAMES))
def test_with_nvlink_one_node_is_never_slower_than_the_same_ranks_one_a_node(fabric, size, num_bytes, name):
    """Without it that need not be so: a GPU of an L40S node shares a host bridge that a NIC does not cross."""
    together, apart = Group(size, size), Group(size, 1)
    assert seconds(fabric, name, num_bytes, together) <= seconds(fabric, name, num_bytes, apart) * (1 + 1e-9)


@given(st.sampled_from(gpu_names()), st.integers(2, 32), st.floats(1e9, 1e12), st.sampled_from(NAMES))
def test_seconds_scale_with_bytes_where_latency_is_nothing(gpu, size, num_bytes, name):
    fabric = Fabric(find_gpu(gpu), 8, NO_LATENCY)
    group = fabric.group(size)
    assert seconds(fabric, name, 3 * num_bytes, group) == pytest.approx(
        3 * seconds(fabric, name, num_bytes, group)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Group(0, 1), "a group of 0 ranks"),
        (lambda: Group(4, 8), "no more a node than there are"),
        (lambda: Fabric(find_gpu("H100"), 0), "gpus_per_node must be at least 1"),
        (lambda: Fabric(find_gpu("H100")).group(4, 0), "both must be at least 1"),
        (lambda: Fabric(find_gpu("H100")).all_reduce_s(-1, Group(2, 2)), "give 0 or more"),
        (lambda: CollectiveConfig(network_efficiency=0.0), "efficiencies must lie in"),
        (lambda: CollectiveConfig(hop_s=-1.0), "times must not be negative"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
