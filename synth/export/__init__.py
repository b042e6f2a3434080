"""Our schedules as programs for others' executors: MSCCL, MSCCL++, and Chakra for simulators.

``ends`` is the way from rounds in lockstep to ranks that run at their own pace; each target has one
module. The late rank needs nothing of its own: its program is there, and it starts later.
"""
