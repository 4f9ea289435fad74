"""The commands of the room of the page."""
