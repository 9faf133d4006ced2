"""Both engine implementations, driven by the same random script, agree to the bit (`benchmarks.engine_script`)."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_script import Run
from benchmarks.engine_script_draws import Script, draw_script

SCRIPTS = st.builds(
    draw_script,
    seed=st.integers(0, 2**32),
    num_engines=st.integers(1, 3),
    num_groups=st.integers(1, 6),
    num_faults=st.sampled_from([0, 0, 3, 10, 30]),
    tiny=st.booleans(),
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCRIPTS)
def test_skip_equals_reference(script: Script) -> None:
    """Every result of every request, every counter, every probe and callback, in the same order."""
    reference = Run(script, "reference").finish()
    skip = Run(script, "skip").finish()
    assert skip.visible() == reference.visible()
    for fast, slow in zip(skip.engines, reference.engines, strict=True):
        assert fast.counters.num_wakes <= slow.counters.num_wakes
