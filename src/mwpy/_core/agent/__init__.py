"""What an agent decides: which slave processes run, which tasks they get, when they are killed, and when to leave."""
