"""Time expressions: parsing, arithmetic and zones; every reading says how it was read, and ambiguous ones are
refused.
"""
