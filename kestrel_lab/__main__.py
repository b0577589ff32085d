"""`python -m kestrel_lab` is `kestrel`."""

from kestrel_lab.cli.overview import main

main()
