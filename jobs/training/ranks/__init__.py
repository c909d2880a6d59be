"""Messages between ranks: ``gathering`` sends JSON in tensors, never a pickle; ``typed_json`` encodes it."""
