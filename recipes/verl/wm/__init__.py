"""The config group `wm`: `+wm=echo`."""
