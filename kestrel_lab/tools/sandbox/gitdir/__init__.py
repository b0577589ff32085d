"""Git folders of a workspace: what a command may write in them, and how it is kept from the rest."""
