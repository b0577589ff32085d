"""Sessions and trajectories of coding agents, one file per agent."""
