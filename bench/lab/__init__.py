"""An emulated network on one machine: hosts in network namespaces, limited ports, no root.

    from bench.lab import Lab, Limits, Network, Tail

    with Lab(Network(hosts=8, rate_mbit=200, of_host={3: Limits(rate_mbit=50)})) as lab:
        lab.run(["python", "train.py"]).check()   # rank r on host r

The command is ``python -m bench.lab``, the pytest fixture ``bench.lab.fixture.lab``.
"""

from bench.lab.errors import JobFailed, LabError, LabUnavailable
from bench.lab.firewall import Ports
from bench.lab.job import Job, Rank
from bench.lab.lab import Lab
from bench.lab.network import Limits, Network, Tail

__all__ = [
    "Job",
    "JobFailed",
    "Lab",
    "LabError",
    "LabUnavailable",
    "Limits",
    "Network",
    "Ports",
    "Rank",
    "Tail",
]
