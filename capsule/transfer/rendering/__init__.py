"""Messages as HTML: what the page of the browser and the exported page draw in the same way."""
