"""Files of forks: their past states, the fork's private copy, and adopting its changes."""
