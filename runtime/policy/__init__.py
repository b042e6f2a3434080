"""How each operation runs: which ranks are taken to be late, by which schedule, and why.

    native    always the library's all-reduce                            nothing to agree on
    static    the user names the late ranks                              nothing to agree on
    predict   who was late lately; changes at an agreed operation        epochs
    eager     a coordinator hears who has come, and starts without the others   coordinator
    auto      as eager, with a wait learned from the delays and the measured links   coordinator

Decisions are pure functions of (now, state, inputs); ``agent``, ``coordinator`` and ``epochs`` are
sans-IO protocols (``latecomer.runtime.network.protocol``). They know neither torch nor sockets nor
threads.
"""
