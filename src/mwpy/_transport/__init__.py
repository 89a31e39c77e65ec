"""How bytes travel: sockets, the channel between agent and slave, encoding. Each module owns one library or call."""
