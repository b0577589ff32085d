"""What a person sees of a workspace: its memory, macros and search."""
