"""Agent Skills: folders with instructions that agents load when a task needs them."""
