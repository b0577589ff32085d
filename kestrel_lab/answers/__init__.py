"""What an answer should look like for what was asked, and what its reader can do next."""
