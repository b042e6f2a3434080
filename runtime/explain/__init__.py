"""Which rank holds up a job, and why, from what stock PyTorch leaves behind: see ``explain``.

sources    the files that are given, and whose they are
dumps      a file of a Flight Recorder, read without running anything in it
records    what is kept of it
watched    the files of a watch, as if they were dumps
told       what ranks told there, and how the job stood at the end
job        what all ranks recorded, by group and in order
waits      who waits for whom, and what each of them has done
diverged   where ranks did different things
verdicts   what follows from dumps: kinds, culprits, a witness
ras        a report of NCCL's RAS
launches   what follows from reports
findings   what follows from all of it

serving    a rank that gives out its dump on demand
served     the file in which it says where
fetching   the command that asks all ranks
"""
