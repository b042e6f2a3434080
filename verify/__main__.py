"""``python -m latecomer.verify`` is the console command ``verify``."""

from latecomer.verify.cli import main

main()
