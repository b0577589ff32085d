"""`python -m kestrel_lab` is `kestrel`."""

from kestrel_lab.cli.main import main

main()
