import hypothesis.strategies as st
from hypothesis import given

from libra.core.load_index import LoadIndex

OPERATIONS = st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 9))), max_size=60)


@given(OPERATIONS)
def test_least_is_the_key_that_has_stood_longest_at_the_lowest_load(operations):
    index: LoadIndex[int] = LoadIndex()
    naive: dict[int, int] = {}  # re-inserted at every change, so order is time at the present load
    for key, load in operations:
        if load is None:
            index.discard(key)
            naive.pop(key, None)
        elif naive.get(key) != load:
            index.set(key, load)
            naive.pop(key, None)
            naive[key] = load
        assert len(index) == len(naive)
        expected = min(naive.items(), key=lambda item: item[1]) if naive else None
        assert index.least() == expected


def test_equals_take_turns():
    index: LoadIndex[str] = LoadIndex()
    for name in "abc":
        index.set(name, 0)
    served = []
    for _ in range(6):
        name, load = index.least()
        served.append(name)
        index.set(name, load + 1)
    assert served == ["a", "b", "c", "a", "b", "c"]
