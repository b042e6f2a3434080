"""All refusals: an option without use beside the others, and a value out of its range."""

import shlex

import pytest

from latecomer.synth.arrivals.generate import search as search_arrivals
from latecomer.synth.straggler.generate import search
from latecomer.synth.transpose.generate import transpose
from latecomer.verify.errors import ArgumentError

NODES = "generate --nodes 2 --per-node 4 --bytes 1MiB"
ONE_NODE = "generate --nodes 1 --per-node 4 --bytes 1MiB"
ALONE = "generate --nodes 4 --per-node 1 --bytes 1MiB"
PLAIN = "pipeline --stages 4 --microbatches 6"
TIMES = f"{PLAIN} --forward 8 --backward 10 --weight 5"
PIPE = f"{PLAIN} --slow 0-1:4"
SIZED = ("generate", "ring", "rhd", "direct", "transpose", "compare")

REFUSED = [
    # command, remedy, options that are refused beside it
    ("generate --n 8", "Add --delay 1", "--exact"),
    ("generate --n 8 --chunks 3", "Leave one", "--m 2"),
    ("table --n 4 --chunks 3", "Leave one", "--m 2"),
    ("program --n 4 --rank 1 --chunks 3", "Leave one", "--bytes 1KiB"),
    ("generate --n 8", "Add --bytes SIZE", "--alpha 3us", "--bandwidth 1GB/s"),
    ("generate --n 8", "Give both", "--nodes 2", "--per-node 4", "--network-ports 2"),
    ("generate --n 8", "Give both", "--outer-alpha 3us", "--outer-bandwidth 1GB/s"),
    ("generate --n 8 --quiet", "Leave one", "--json"),
    ("generate --n 8 --owners free", "Leave one", "--solver z3", "--time-limit 5", "--effort 2"),
    ("generate --n 8 --delay 2", "Add --bytes SIZE", "--alpha 3us"),
    ("generate --n 8 --delay 2", "Leave one", "--ports matching", "--owners free"),
    ("generate --n 8 --delay 2", "Give one of the two", "--arrivals 3"),
    ("generate --n 8 --late 6,7 --arrivals 1,3", "Leave one", "--owners balanced"),
    (NODES, "Leave one", "--delay 2", "--arrivals 2", "--ports matching", "--owners free"),
    (NODES, "Add --delay 1", "--exact"),
    (NODES, "Name one rank", "--late 6,7"),
    (NODES, "Leave --n out", "--n 9"),
    (ONE_NODE, "Leave it out", "--network-ports 2", "--outer-alpha 3us", "--outer-bandwidth 1GB/s"),
    (ALONE, "--outer-alpha", "--alpha 3us"),
    (ALONE, "--outer-bandwidth", "--bandwidth 1GB/s"),
    ("straggler --n 8 --chunks 3", "Leave one", "--m 2"),
    ("straggler --n 8", "Add --bytes SIZE", "--alpha 3us", "--bandwidth 1GB/s"),
    ("straggler --n 8 --owners free", "Leave one", "--solver z3", "--time-limit 5"),
    ("straggler --n 8 --quiet", "Leave one", "--json"),
    ("arrivals --n 8 --delay 2", "Give one of the two", "--arrivals 3"),
    ("arrivals --n 8 --delay 2", "Add --bytes SIZE", "--alpha 3us"),
    ("arrivals --n 8 --delay 2 --chunks 3", "Leave one", "--m 2"),
    ("nodes --nodes 1 --per-node 4 --bytes 1MiB", "Leave it out", "--network-ports 2"),
    ("nodes --nodes 4 --per-node 1 --bytes 1MiB", "--outer-alpha", "--alpha 3us"),
    *((f"{name} --n 4 --quiet", "Leave one", "--json") for name in SIZED[1:5]),
    ("transpose --n 8", "Add --groups", "--exchange transpose", "--exchange doubling"),
    ("transpose --n 8", "Add --bytes SIZE", "--alpha 3us", "--bandwidth 1GB/s"),
    ("transpose --n 8 --groups 8", "lower --groups", "--incast 2"),
    ("compare --n 8 --sizes 1MiB", "FIRST:LAST", "--factor 2"),
    ("table --n 4 --owners free", "Leave one", "--solver z3", "--time-limit 5"),
    (f"{PIPE} --quiet", "Leave one", "--json"),
    (PIPE, "Add --compare", "--factors 0,1"),
    (PIPE, "Add --csv", "--csv-form compute_only"),
    (PIPE, "Add --virtual 2", "--placement loop"),
    (PIPE, "--virtual 2", "--placement vee"),
    (PIPE, "Add --scenario", "--robust worst", "--robust mean"),
    (f"{PIPE} --compare", "Use --picture", "--output a.json"),
    (f"{PIPE} --compare", "is not for --compare", "--csv a.csv", "--scenario none"),
    (f"{PIPE} --compare --method heuristic", "--method best", "--workers 2"),
    (f"{PIPE} --method heuristic", "--method best", "--time-limit 5"),
    (f"{PIPE} --method 1f1b", "--method best", "--seed 1"),
    (f"{PIPE} --method greedy", "--method best", "--workers 2"),
    (f"{PIPE} --scenario none", "must be best", "--method greedy"),
]

INVALID = [
    # command, what is said about it
    ("generate --m 2", "--n is needed: the number of ranks. For example: --n 8; or give --nodes"),
    ("straggler --n 8 --late 8", "--late = 8: must be a rank, 0..7"),
    ("arrivals --n 8", "Add --arrivals 3 or --delay 3"),
    ("arrivals --n 8 --late 6,7", "Add --arrivals 3,3 or --delay 3"),
    ("nodes --nodes 2 --per-node 4 --bytes 1MiB --late 8", "--late = 8: must be a rank, 0..7"),
    *((f"{name} --n 1", "--n = 1: must be in 2..") for name in SIZED),
    *((f"{name} --n 1025", "--n = 1025: must be in 2..1024") for name in SIZED[1:]),
    *((f"generate --n 8 --late {x}", f"--late = {x}: must be a rank, 0..7") for x in (8, -1)),
    ("generate --n 8 --late 1 --late 2", "Add --arrivals 3,3 or --delay 3"),
    ("generate --n 8 --m 0", "--m = 0: must be 1 or more"),
    ("generate --n 4 --m 1000000", "Lower --m or --n"),
    ("generate --n 6 --ports matching --owners free", "--owners = 'free'"),
    ("generate --n 8 --seed -3", "--seed = -3: must be in 0..2147483647"),
    ("generate --n 8 --effort 0", "--effort = 0.0: must be above 0"),
    ("generate --n 8 --time-limit 0", "--time-limit = 0.0: must be a positive number"),
    ("generate --n 8 --time-limit nan", "--time-limit = nan"),
    ("generate --n 8 --bytes 1Gb", "--bytes = '1Gb'"),
    ("generate --n 8 --bytes 1GiB --alpha 3", "--alpha = '3'"),
    ("generate --n 8 --bytes 1GiB --bandwidth 0GB/s", "--bandwidth = '0GB/s'"),
    ("generate --n 8 -o missing/a.json", "--output = 'missing/a.json'"),
    ("generate --n 8 -o .", "--output = '.': is a directory"),
    ("generate --n 8 --delay 3ms", "--delay = '3ms': needs the length of a round"),
    ("generate --n 8 --delay -1", "--delay = '-1': must be 0 or more"),
    ("generate --n 4 --delay 1 --m 0", "--m = 0"),
    ("generate --n 200 --delay 1", "--n, --m = (200, 1)"),
    ("generate --n 8 --delay 1 --m 1000000", "--n, --m = (8, 1000000)"),
    ("generate --n 8 --delay 1 --exact", "--exact = '8 ranks, 7 chunks'"),
    ("generate --n 6 --delay 1 --exact", "up to 5 ranks"),
    ("generate --n 4 --delay 1 --exact --m 50", "or leave --exact out"),
    ("generate --n 4 --late 1,4 --arrivals 1,2", "--late = 4: must be a rank"),
    ("generate --n 8 --late '6;7'", "--late = '6;7': must be whole numbers"),
    ("generate --n 8 --late 6,6 --arrivals 3,9", "--late = [6, 6]: names a rank twice"),
    ("generate --n 8 --late 6,7 --arrivals 3", "--arrivals = '3': names 1 rounds for 2"),
    ("generate --n 8 --late 6,7 --arrivals 3,soon", "--arrivals = '3,soon'"),
    ("generate --n 8 --late 6,7 --arrivals 3,-1", "--arrivals = '3,-1': must be 0 or more"),
    ("generate --n 8 --late 6,7 --arrivals 3,9 --delay 4", "--delay = '4': contradicts"),
    ("generate --n 3 --late 0,1,2 --arrivals 0,0,5", "no rank is there to wait"),
    ("generate --nodes 2 --per-node 4", "--bytes is needed: the size of the buffer, with --nodes"),
    ("generate --nodes 2 --per-node 4 --bytes 1", "--bytes = '1'"),
    ("generate --nodes 2 --per-node 4 --bytes 0B", "--bytes = '0B': must be positive"),
    ("generate --nodes 0 --per-node 4 --bytes 1MiB", "--nodes = 0"),
    ("generate --nodes 2 --per-node 0 --bytes 1MiB", "--per-node = 0"),
    ("generate --nodes 1 --per-node 1 --bytes 1MiB", "--n = 1"),
    ("generate --nodes 200 --per-node 8 --bytes 1MiB", "--n = 1600"),
    *((f"{NODES} --late {x}", f"--late = {x}: must be a rank, 0..7") for x in (8, -1)),
    (f"{NODES} --m 0", "--m = 0"),
    *((f"{NODES} --network-ports {x}", f"--network-ports = {x}: must be in 1..4") for x in (0, 5)),
    (f"{NODES} --outer-alpha 1", "--outer-alpha = '1'"),
    *((f"transpose --n 8 --incast {x}", f"--incast = {x}: must be in 1..7") for x in (0, 8)),
    *((f"transpose --n 8 --groups {x}", "must divide n = 8. One of 1, 2, 4") for x in (0, -2, 3)),
    ("transpose --n 8 --bytes many", "--bytes = 'many'"),
    ("transpose --n 8 --bytes 1MiB --bandwidth 0GB/s", "--bandwidth = '0GB/s'"),
    ("transpose --n 8 -o missing/a.json", "--output = 'missing/a.json'"),
    ("compare --n 8 --most-chunks 0", "--most-chunks = 0"),
    ("generate --n 8 --chunks 0", "--chunks = 0"),
    (f"generate --n 16384 --chunks {2**10}", "--n, --chunks"),
    ("generate --n 8 --delay 2 --chunks 0", "--chunks = 0"),
    ("program --n 8 --rank 1", "--chunks is needed"),
    ("program --n 1 --rank 0 --chunks 3", "--n = 1"),
    *((f"program --n 4 --rank {x} --chunks 3", f"--rank = {x}") for x in (-1, 4)),
    *((f"program --n 4 --rank 0 --chunks {x}", f"--chunks = {x}") for x in (0, 2**16 + 1)),
    ("program --n 4 --rank 0 --late 4 --chunks 3", "--late = 4"),
    ("generate --n 16385", "must be in 2..16384"),
    ("compare --n 8 --factor 1", "--factor = 1: must be 2 or more"),
    ("compare --n 8 --sizes big", "--sizes = 'big'"),
    *(
        (f"compare --n 8 --sizes {x}", "--sizes")
        for x in ("''", ":", "1KiB:", "2KiB:1KiB", "0B:1B")
    ),
    ("compare --n 8 --sizes 1KiB:1GiB:2", "--sizes"),
    ("compare --n 8 --alpha 3", "--alpha = '3'"),
    ("compare --n 8 --bandwidth 0GB/s", "--bandwidth = '0GB/s'"),
    ("compare --n 8 --plot a.gif", "--plot = 'a.gif': must end in"),
    ("compare --n 8 --plot nowhere/a.svg", "--plot = 'nowhere/a.svg'"),
    ("table --n 1", "--n = '1'"),
    *((f"table --n {x}", "--n") for x in ("''", ",", "2..", "..3", "5..2", "1..3", "9..1025")),
    *((f"table --n {x}", "--n") for x in ("-2", "2.5", "x")),
    ("table --n 8 --m 0", "--m = '0'"),
    (f"{PLAIN} --stages 0", "--stages = 0"),
    (f"{PLAIN} --microbatches 0", "--microbatches = 0"),
    (f"{PLAIN} --microbatches 60000 --stages 30", "1048576 actions"),
    *((f"{TIMES} --forward {x}", "number, 0 or more") for x in ("-8", "nan", "''")),
    (f"{TIMES} --forward 8,8,8", "4: one per stage (it has 3)"),
    (f"{TIMES} --forward 0.12345678901", "at most 9 decimals"),
    (f"{PLAIN} --forward 8 --weight 5", "--backward = None: is missing"),
    (f"{PLAIN} --memory 0.5", "The least that works is 1"),
    (f"{PLAIN} --virtual 2 --memory 1.5", "The least that works is 2"),
    (f"{PLAIN} --memory 1.25", "multiple of 0.5"),
    (f"{PLAIN} --slow 3-4:5", "there is no link 3-4; the links are: 0-1, 1-2, 2-3"),
    (f"{PLAIN} --slow 0-2:5", "there is no link 0-2"),
    (f"{PLAIN} --slow 0-1", "LINK:LATENCY"),
    (f"{PLAIN} --slow 0-1:5:1:both", "half or full"),
    (f"{PLAIN} --slow 0-1:9..5", "range from less to more"),
    (f"{PLAIN} --slow 0-1:0..5 --scenario none", "can't have a range"),
    (f"{PLAIN} --slow 0-1:0..5 --robust mean", "needs --scenario"),
    (f"{PLAIN} --scenario 7-8:2", "there is no link 7-8"),
    (f"{PLAIN} --scenario none@0", "weight above 0"),
    (f"{PLAIN} --virtual 3", "must divide the 4 stages"),
    (f"{PLAIN} --method magic", "must be one of best, cp-sat"),
    (f"{PLAIN} --method gpipe --memory 2", "gpipe holds 6 activations"),
    (f"{PLAIN} --method 1f1b --virtual 2", "has one stage per rank"),
    (f"{PLAIN} --time-limit 0", "positive number of seconds"),
    (f"{PLAIN} --workers 0", "--workers = 0"),
    (f"{PLAIN} --picture x.bmp", "must end in .svg or .json"),
    (f"{PLAIN} --csv nowhere/x.csv", "--csv = 'nowhere/x.csv'"),
    (f"{PLAIN} --compare", "no delay to compare at"),
    (f"{PIPE} --compare --factors 0,2,1", "must grow"),
    (f"{PLAIN} --slow 0-1:9999999999999", "--slow = 'links[0].latency'", "must be in 0..1e+12"),
    (f"{PLAIN} --memory 1.25", "--memory = 'memory[0]'", "is 1.25, must be a multiple of 0.5"),
    ("table --n 4 --time-limit 0", "--time-limit = 0.0"),
]


REFUSED_ONE_BY_ONE = [
    (f"{command} {option}", option.split()[0], remedy)
    for command, remedy, *options in REFUSED
    for option in options
]
"""Command, and what its message has to contain."""


@pytest.mark.parametrize(
    ("command", "parts"), [(command, parts) for command, *parts in REFUSED_ONE_BY_ONE + INVALID]
)
def test_refused(synth, tmp_path, command: str, parts: list[str]) -> None:
    code, out, err = synth(*shlex.split(command))
    assert (code, out) == (2, "")
    assert err.startswith("error: --")
    assert all(part in err for part in parts)
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "generate --n x",
        "generate --n 8 --ports both",
        "table --n 8 --ports single",
        "compare --n 8 --latency none",
        "transpose --n 8 --groups 2 --exchange ring",
    ],
)
def test_no_command_line(synth, tmp_path, command: str) -> None:
    code, out, err = synth(*command.split())
    assert (code, out) == (2, "")
    assert command.split()[-2] in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [
        (search, {"n": 4, "ports": "simplex"}, "--ports"),
        (search, {"n": 4, "owners": "mine"}, "--owners"),
        (search, {"n": 4, "solver": "guess"}, "--solver"),
        (search_arrivals, {"n": 4, "arrivals": {}}, "--late"),
        (search_arrivals, {"n": 4, "arrivals": {3: 1}, "solver": "guess"}, "--solver"),
        (transpose, {"n": 8, "exchange": "ring"}, "--exchange"),
    ],
)
def test_a_library_call_is_refused_too(make, arguments, name: str) -> None:
    with pytest.raises(ArgumentError) as error:
        make(**arguments)
    assert error.value.name == name
