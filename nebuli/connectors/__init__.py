"""What fragments read from and write to: files, the terminal, TCP and the network."""
