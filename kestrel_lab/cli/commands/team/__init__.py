"""Commands for teams: a first suite, decisions in CI, a site of all results."""
