"""The Jupyter front end: magics, a live panel, completion, and waits that a cell can interrupt."""
