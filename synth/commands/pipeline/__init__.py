"""``synth pipeline``.

Exit codes: 0 written (also where Ctrl-C ended the search: then the best so far), 1 no schedule was
made, 2 bad arguments, 130 interrupted before there was anything to write. Nothing is written unless
the exit code is 0.

    command   what is typed, and what is done with it
    options   the options, and which of them can't be combined
    request   what the options ask for: a problem, scenarios of delays, a solver
    search    the schedule for a request, or the comparison of all methods
    output    the files, and what is printed
"""
