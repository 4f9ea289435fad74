"""The pages, one module each. A page parses a request, calls the Store, and renders a template."""
