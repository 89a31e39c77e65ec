"""The overseer's decisions: how many jobs to submit and which to remove."""
