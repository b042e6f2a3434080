"""Which rank holds up a job, and why, from what stock PyTorch leaves behind: see ``explain``.

dumps      a file of a Flight Recorder, read without running anything in it
job        what all ranks recorded, by group and in order
waits      who waits for whom, and what each of them has done
diverged   where ranks did different things
verdicts   what follows: kinds, culprits, a witness
"""
