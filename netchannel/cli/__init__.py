"""The command ``netchannel``: files into channels, channels into files, from two terminals."""
