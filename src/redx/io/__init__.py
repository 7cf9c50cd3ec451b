"""Files, caches, downloads, progress bars and hardware checks."""
