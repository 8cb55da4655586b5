"""The page: a run while it goes, in a browser or as JSON, served by the process that drives it."""
