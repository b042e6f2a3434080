"""``latecomer.elastic.Job`` with real processes that are killed, stopped, and come back."""
