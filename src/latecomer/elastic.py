"""``latecomer.runtime.elastic``, under the name that scripts use."""

from latecomer.runtime.elastic.job import Job, Step

__all__ = ["Job", "Step"]
