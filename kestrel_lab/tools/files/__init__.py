"""Files of the workspace: tools that read, search and change them, within its bounds."""
