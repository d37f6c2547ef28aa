"""`python -m quiesce`: the command line."""

from quiesce.cli.main import main

main()
