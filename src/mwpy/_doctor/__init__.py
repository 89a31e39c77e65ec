"""`mwpy doctor`: sends an examination, which runs on the agent's machine, and judges what it finds."""
