"""Files as each version has left them on disks, which every later one must open (`README.md`)."""
