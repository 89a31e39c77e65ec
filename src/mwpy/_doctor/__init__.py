"""`mwpy doctor`: `consultation` sends an examination, `examination` runs on the agent's machine, `diagnosis` judges."""
