"""The report of a run: its content as plain values, and the page in HTML and Markdown."""
