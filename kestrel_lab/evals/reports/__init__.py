"""Reports: pages, plots, JUnit, pull requests, gates."""
