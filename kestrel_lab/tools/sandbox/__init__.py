"""Sandbox: levels that bound what a program started by an agent can reach, each tested before it is relied
on.
"""
