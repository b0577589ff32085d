"""Time expressions: parsing, arithmetic and zones. Results tell how they were read; ambiguity is refused."""
