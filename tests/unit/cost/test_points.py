"""Both CSV forms of measured points, and what is said where one is broken."""

import pytest

from libra.cost.points import Points, kind_of, read_points
from libra.errors import UserError

GRID = "kind,batch,prompt_tokens,output_tokens,value_s,aux1"
MIXED = "kind,batch,context_tokens,param,value_s,n,note"


@pytest.fixture
def csv(tmp_path):
    """Write a file of these lines and read it."""

    def read(*lines):
        path = tmp_path / "points.csv"
        path.write_text("\n".join(lines) + "\n")
        return read_points(path)

    return read


def test_a_grid_gives_decode_steps_at_their_mean_context_and_single_prefills(csv):
    points = csv(
        GRID + ",aux2",
        "prefill,1,128,1,0.009,0.0088,0.01",
        "prefill_batch,4,2048,1,0.12,0,0",
        "decode,4,2048,96,0.004,0.5,4",
        "decode,128,2048,96,-1,5.2,0",
    )
    assert points == Points(decode=[(4, 4 * (2048 + 48.0), 0.004)], prefill=[(128, 0.009)])


@pytest.mark.parametrize(
    ("median", "least", "used"),
    [
        (0.0224, 0.0181, 0.0181),  # 24 % above the least run: disturbed
        (0.0207, 0.0181, 0.0207),  # 14 % above: the median
        (0.0224, 0.0, 0.0224),  # no least run
        (0.0224, "", 0.0224),
    ],
)
def test_a_noisy_prefill_counts_with_its_least_run(csv, median, least, used):
    assert csv(GRID, f"prefill,1,512,1,{median},{least}").prefill == [(512, used)]


def test_a_mixed_table_gives_all_three_kinds(csv):
    points = csv(
        MIXED,
        "prefill_alone,1,0,64,0.0091,12,min 0.0085",
        "warm_prefix_32_new,1,4096,32,0.01,12,",
        "decode,24,2048,96,0.005,1,",
        "mixed,32,2000.4,512,0.02,9,",
        "mixed,32,2000,0,0.0061,9,",
        "mixed,32,2000,128,-1,0,",
    )
    assert points.prefill == [(64, 0.0091)]
    assert points.decode == [(24, 24 * (2048 + 48.0), 0.005), (32, 64_000.0, 0.0061)]
    assert points.mixed == [(32, 2000, 512, 0.02)]


def test_points_add_up():
    one, other = Points([(1, 2.0, 3.0)], [(4, 5.0)]), Points([(6, 7.0, 8.0)], [], [(1, 2, 3, 4.0)])
    assert one + other == Points([(1, 2.0, 3.0), (6, 7.0, 8.0)], [(4, 5.0)], [(1, 2, 3, 4.0)])


def test_the_columns_tell_the_form():
    assert kind_of({name: [] for name in GRID.split(",")}) == "grid"
    assert kind_of({name: [] for name in MIXED.split(",")}) == "mixed"
    assert kind_of({"kind": [], "batch": []}) == "other"


GRID_ROW = "decode,4,2048,96,0.004,0.5"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("a,b", "1,2"), "line 1: neither a grid .* nor a mixed table .*; rename the columns"),
        ((GRID,), "line 1: no rows below the header"),
        (
            (GRID, GRID_ROW, "decode,x,2048,96,0.004,0.5"),
            "line 3, column batch: 'x' is not a number; correct it",
        ),
        ((GRID, "decode,0,2048,96,0.004,0.5"), "line 2, column batch: 0 is below 1; correct it"),
        ((GRID, "decode,1.5,2048,96,0.004,0.5"), "line 2, column batch: 1.5 is not a whole number"),
        ((GRID, GRID_ROW, GRID_ROW, "decode,4,2048,96,,0.5"), "line 4, column value_s: is empty"),
        (
            (GRID, "prefill,1,2048,1,0,0.5"),
            "line 2, column value_s: 0 is no time; give seconds above 0, or -1",
        ),
        ((GRID, "decode,1,2048,1,-0.5,0.5"), "line 2, column value_s: -0.5 is no time"),
        ((GRID, "decode,1,2048,1,nan,0.5"), "line 2, column value_s: 'nan' is not a finite number"),
        ((GRID, ",1,2048,1,0.1,0.5"), "line 2, column kind: is empty"),
        ((MIXED, "mixed,1,2048,x,0.1,0,"), "line 2, column param: 'x' is not a number"),
        ((MIXED, "mixed,1,,32,0.1,0,"), "line 2, column context_tokens: is empty"),
        ((MIXED, "mixed,1,0,32,-3,0,"), "line 2, column value_s: -3 is below -1"),
        ((MIXED, "mixed,1,0,32,0.1,0"), "line 2: 6 fields under 7 column names"),
    ],
)
def test_a_broken_file_is_named_with_line_and_column(csv, tmp_path, lines, message):
    with pytest.raises(UserError, match=message) as caught:
        csv(*lines)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "points.csv"))
    assert "\n" not in text


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_points(tmp_path / "none.csv")
