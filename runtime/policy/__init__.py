"""How each operation runs: who is taken to be late, by which schedule, and why.

    native    always the library's all-reduce                            nothing to agree on
    static    the user names the late rank                               nothing to agree on
    predict   who was late lately; all ranks change over at an agreed operation       agreement
    eager     a coordinator hears who has arrived, and says who is missing            control
    auto      as eager, with a wait learned from the delays and the measured links    control

Decisions are pure functions of (now, state, options); ``control`` is a state machine of messages
and time in, messages and decisions out. Nothing here knows torch, sockets or threads.
"""
