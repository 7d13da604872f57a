"""What a world model predicts, measured and shown. Imports neither host."""
