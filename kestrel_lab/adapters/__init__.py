"""Adapters: other people's agents, which work on a goal in a program of their own and whose messages become
the events of a run.
"""
