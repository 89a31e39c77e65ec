"""What the operating system offers: processes, standard streams, clocks, installed packages."""
