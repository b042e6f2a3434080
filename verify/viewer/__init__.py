"""One self-contained page that shows a schedule: its rounds, who holds what, and the verdict."""
