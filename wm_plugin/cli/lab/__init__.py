"""`wm lab`: what serves one paper's study. One module a verb."""
