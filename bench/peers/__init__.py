"""The same jobs as `bench` measures, done with other tools; each module runs in that tool's own
environment.
"""
