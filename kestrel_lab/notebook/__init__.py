"""The Jupyter face: magics, a live panel, and waiting that never blocks where nobody can answer."""
