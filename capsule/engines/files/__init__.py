"""The engine on files: a JSON file per document, written by many processes at once."""
