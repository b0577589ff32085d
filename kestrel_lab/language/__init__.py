"""Text as tokens: words, stems and names, in prose and in code."""
