"""``latecomer.runtime.ddp``, under the name that scripts use."""

from latecomer.runtime.ddp import Attachment, attach

__all__ = ["Attachment", "attach"]
