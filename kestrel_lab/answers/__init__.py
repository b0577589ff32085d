"""The intent of a goal, the form of an answer, and the next actions of its reader."""
