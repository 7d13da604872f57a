"""What everything else runs on: servers, event loops, processes, sandboxes. Knows nothing of world models."""
