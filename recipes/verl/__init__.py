"""Recipes for verl: a config group `wm` and one launch script a method."""
