"""What a run carries along: its context, budget, tools and tool cache."""
