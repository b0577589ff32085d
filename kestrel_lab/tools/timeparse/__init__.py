"""Time expressions: parsing, arithmetic and zones. Results say how they were read; ambiguity is refused."""
