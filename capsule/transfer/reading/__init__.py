"""What an import reads: files wherever they lie, and the JSON in them."""
