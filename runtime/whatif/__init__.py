"""What a job that runs elsewhere would gain, from what it has recorded: see ``latecomer whatif``.

operations   when each rank came to each operation, and what that was
gains        what an operation could gain: now, with overlap, and at the limit
remedies     what would help the job more than any all-reduce
report       all of it in words, and for machines
command      the command

inputs       which reader a file is for
kineto       traces of torch's profiler
recorded     dumps of Flight Recorders, and files of ``latecomer.watch``
clocks       ranks' clocks, aligned by what has to be simultaneous
"""
