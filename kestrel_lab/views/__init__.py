"""The view model of a run and its renderings as text, HTML and pictures, all computed from events."""
