"""What formats share: fields in columns, pairs of functions, turns of an agent."""
