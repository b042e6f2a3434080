"""No option is silently ignored: what has no use beside the others is refused, with a remedy."""

import pytest

NODES = "generate --nodes 2 --per-node 4 --bytes 1MiB"
ONE_NODE = "generate --nodes 1 --per-node 4 --bytes 1MiB"
ALONE = "generate --nodes 4 --per-node 1 --bytes 1MiB"
PIPE = "pipeline --stages 4 --microbatches 6 --slow 0-1:4"

REFUSED = [
    # command and situation, the option, the remedy
    ("generate --n 8", "--exact", "Add --delay 1"),
    ("generate --n 8", "--alpha 3us", "Add --bytes SIZE"),
    ("generate --n 8", "--bandwidth 1GB/s", "Add --bytes SIZE"),
    ("generate --n 8", "--nodes 2", "Give both"),
    ("generate --n 8", "--per-node 4", "Give both"),
    ("generate --n 8", "--network-ports 2", "Give both"),
    ("generate --n 8", "--outer-alpha 3us", "Give both"),
    ("generate --n 8", "--outer-bandwidth 1GB/s", "Give both"),
    ("generate --n 8 --quiet", "--json", "Leave one"),
    ("generate --n 8 --owners free", "--solver z3", "Leave one"),
    ("generate --n 8 --owners free", "--time-limit 5", "Leave one"),
    ("generate --n 8 --delay 2", "--alpha 3us", "Add --bytes SIZE"),
    ("generate --n 8 --delay 2", "--ports matching", "Leave one"),
    ("generate --n 8 --delay 2", "--owners free", "Leave one"),
    ("generate --n 8 --delay 2", "--arrivals 3", "Give one of the two"),
    ("generate --n 8 --late 6,7 --arrivals 1,3", "--owners balanced", "Leave one"),
    (NODES, "--delay 2", "Leave one"),
    (NODES, "--arrivals 2", "Leave one"),
    (NODES, "--exact", "Add --delay 1"),
    (NODES, "--ports matching", "Leave one"),
    (NODES, "--owners free", "Leave one"),
    (NODES, "--late 6,7", "Name one rank"),
    (NODES, "--n 9", "Leave --n out"),
    (ONE_NODE, "--network-ports 2", "Leave it out"),
    (ONE_NODE, "--outer-alpha 3us", "Leave it out"),
    (ONE_NODE, "--outer-bandwidth 1GB/s", "Leave it out"),
    (ALONE, "--alpha 3us", "--outer-alpha"),
    (ALONE, "--bandwidth 1GB/s", "--outer-bandwidth"),
    ("ring --n 4 --quiet", "--json", "Leave one"),
    ("rhd --n 4 --quiet", "--json", "Leave one"),
    ("direct --n 4 --quiet", "--json", "Leave one"),
    ("transpose --n 4 --quiet", "--json", "Leave one"),
    ("transpose --n 8", "--exchange transpose", "Add --groups"),
    ("transpose --n 8", "--exchange doubling", "Add --groups"),
    ("transpose --n 8", "--alpha 3us", "Add --bytes SIZE"),
    ("transpose --n 8", "--bandwidth 1GB/s", "Add --bytes SIZE"),
    ("transpose --n 8 --groups 8", "--incast 2", "lower --groups"),
    ("compare --n 8 --sizes 1MiB", "--factor 2", "FIRST:LAST"),
    ("table --n 4 --owners free", "--solver z3", "Leave one"),
    ("table --n 4 --owners free", "--time-limit 5", "Leave one"),
    (f"{PIPE} --quiet", "--json", "Leave one"),
    (PIPE, "--factors 0,1", "Add --compare"),
    (PIPE, "--csv-form compute_only", "Add --csv"),
    (PIPE, "--placement loop", "Add --virtual 2"),
    (PIPE, "--placement vee", "--virtual 2"),
    (PIPE, "--robust worst", "Add --scenario"),
    (PIPE, "--robust mean", "Add --scenario"),
    (f"{PIPE} --compare", "--output a.json", "Use --picture"),
    (f"{PIPE} --compare", "--csv a.csv", "is not for --compare"),
    (f"{PIPE} --compare", "--scenario none", "is not for --compare"),
    (f"{PIPE} --compare --method heuristic", "--workers 2", "--method best"),
    (f"{PIPE} --method heuristic", "--time-limit 5", "--method best"),
    (f"{PIPE} --method 1f1b", "--seed 1", "--method best"),
    (f"{PIPE} --method greedy", "--workers 2", "--method best"),
    (f"{PIPE} --scenario none", "--method greedy", "must be best"),
]


@pytest.mark.parametrize(("command", "option", "remedy"), REFUSED)
def test_refused(synth, tmp_path, command: str, option: str, remedy: str) -> None:
    code, out, err = synth(*command.split(), *option.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: --")
    assert option.split(maxsplit=1)[0] in err
    assert remedy in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
