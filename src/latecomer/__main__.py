"""``python -m latecomer`` is the console command ``latecomer``."""

from latecomer.command import main

main()
