"""A simulated machine, on which all ranks of a job run in one thread, on virtual time.

The code that ships runs as it is: what it asks of ``latecomer.runtime.host`` is answered by a
simulated host in place of the machine. One seed decides everything that could be otherwise: which
thread goes on, what the network delays, loses or doubles, who pauses. So one seed is one execution,
on every machine.
"""
