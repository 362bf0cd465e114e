"""The commands: one file each, which parses, calls and prints."""
