"""What is made of trajectories to train on: prompts, samples, rows for either host."""
