"""Wrappers around a world, as in Gymnasium: simulated, controlled, verified, rewarded, in tags, with a turn budget."""
