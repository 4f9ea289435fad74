"""How clients reach the server: over stdio and over HTTP."""
