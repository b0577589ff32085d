"""What an agent can do: typed functions as tools, and native tools confined to a workspace."""
