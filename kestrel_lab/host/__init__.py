"""The machine this runs on: git, programs, the user, and imports that nobody in a workspace can plant."""
