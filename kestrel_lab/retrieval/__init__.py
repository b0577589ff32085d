"""Finding what a folder holds: an index of its files, three ways to look things up, and a cascade of them
that says what it did.
"""
