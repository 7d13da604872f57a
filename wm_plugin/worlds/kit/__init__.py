"""What several environments share, and no one of them in particular. Internal: users see the environments themselves."""
