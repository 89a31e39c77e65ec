"""The simulator: whole systems in one thread, on a simulated clock and network, with every fault."""
