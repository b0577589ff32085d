"""Tests of evaluations: a folder for each package of `kestrel_lab.evals`, `shipped` for the suites that come
with the project. Its helpers are found from here.
"""
