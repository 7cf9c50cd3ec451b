"""The page and the HTTP API of a finished run: `redx serve`."""
