"""Data that is written for a study: variants of scenarios, and fictional worlds as files."""
