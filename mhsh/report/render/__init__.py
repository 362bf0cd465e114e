"""Tables, pages and files."""
