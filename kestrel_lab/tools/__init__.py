"""Tools of agents: typed functions as tools, and native tools confined to a workspace."""
