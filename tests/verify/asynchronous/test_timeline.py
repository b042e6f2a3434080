"""PipeMorph's timelines, read as pipeline schedules."""

import pytest

from latecomer.verify.errors import FormatError
from latecomer.verify.pipeline.check import check
from latecomer.verify.pipeline.simu_txt import decode_timeline

RIGHT = "0, F, 0, 8\n1, F, 8, 16\n1, B, 16, 26\n0, B, 26, 36\n1, W, 26, 31\n0, W, 36, 41\n"


def test_a_right_one_is_proved():
    schedule = decode_timeline(RIGHT.encode())
    assert [list(map(str, program)) for program in schedule.programs] == [
        ["0F0", "0I0", "0W0"],
        ["1F0", "1I0", "1W0"],
    ]
    assert check(schedule).verdict.value == "proved"
    assert schedule.instance.backward == (10, 10)


def test_without_weights_backwards_are_whole():
    schedule = decode_timeline("\n".join(RIGHT.splitlines()[:4]).encode())
    assert [str(action) for action in schedule.programs[0]] == ["0F0", "0B0"]
    assert check(schedule).verdict.value == "proved"


def test_a_missing_pass_is_refuted():
    assert check(decode_timeline(RIGHT.replace("0, B, 26, 36\n", "").encode())).verdict.value == (
        "refuted"
    )


def test_the_command_takes_them(verify, tmp_path):
    (tmp_path / "simu.txt").write_text(RIGHT)
    code, out, _ = verify("simu.txt")
    assert (code, "PROVED" in out) == (0, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no pass"),
        ("0, X, 0, 1", "line 1 is not"),
        ("0, F, 0, 5\n0, F, 4, 9", "does two things at 4"),
    ],
)
def test_what_is_no_timeline_is_refused(text, problem):
    with pytest.raises(FormatError, match=problem):
        decode_timeline(text.encode())
