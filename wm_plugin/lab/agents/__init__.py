"""Data made by trying other actions, synthetic trajectories, and policies that look ahead."""
