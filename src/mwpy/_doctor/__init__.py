"""`mwpy doctor`: what an examination looks at on an execute machine, and what follows from it."""
