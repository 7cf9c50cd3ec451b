"""Disk, network and terminal: atomic files, hashes, caches, downloads, progress bars, hardware checks."""
