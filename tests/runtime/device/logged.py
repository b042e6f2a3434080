"""What the runtime logs in a test's own process, where pytest's ``caplog`` does not reach."""

from __future__ import annotations

import logging


def logged_from_now_on():
    """(level, text) of what the runtime logs."""
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append((record.levelno, record.getMessage()))

    logger = logging.getLogger("latecomer")
    logger.addHandler(Handler())
    logger.setLevel(logging.INFO)
    return messages
