"""What commands share: options, input, output, the store."""
