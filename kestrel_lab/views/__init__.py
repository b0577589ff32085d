"""What people are shown: one view model of a run and its renderings, all computed from events."""
