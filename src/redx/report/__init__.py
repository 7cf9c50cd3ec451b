"""The report of a run: content, sections, figures, and the page itself."""
