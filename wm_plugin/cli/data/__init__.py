"""`wm data`: rollouts of any format to trajectories, and trajectories to training data. One module a verb."""
