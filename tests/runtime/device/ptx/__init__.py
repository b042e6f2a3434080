"""The shipped kernel's PTX, executed: an interpreter, weak memory, adversaries, mutants.

From the text to what it does:

    builds, paths       the kernel compiled for GPUs; what its text must have, without running it
    parser, liveness    the text as instructions; which registers still matter
    arithmetic          what each instruction on registers computes
    program             the text decoded: a function for each instruction

Memory, by the PTX ISA's memory consistency model:

    order               what comes before what: barriers, releases and acquires, launches
    regions, accesses   whose bytes are whose; who has accessed them last, and races
    memory, shared      loads, stores, messages of words; a block's shared memory

What runs:

    group, block        threads that run together; barriers
    machine             ranks, and the kernels on their streams
    allreduce           all-reduces set up as the runtime launches them, and their oracle
    adversary, explore  choices by a seed; all choices of a small case

What has to hold, and whether it would be noticed:

    rows, validation    what blocks did, as rows, beside the rows that are proved
    plan, __main__      what a seed runs; many seeds
    mutants, battery, harmless   changed texts; cases that notice; what changes nothing
"""
