"""The jobs of `bench` done with other tools; each module runs in that tool's environment."""
