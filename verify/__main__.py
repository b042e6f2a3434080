"""``python -m verify`` is the console command ``verify``."""

from verify.cli import main

main()
